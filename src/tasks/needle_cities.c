/* needle_cities: names for needles. See needles.h. Samples are drawn by place in this list: whoever changes it
 * changes all prompts.
 * SPDX-License-Identifier: MIT */
#include "tasks/needles.h"

const char *const dq_needle_city[DQ_NEEDLE_CITIES] = {
    "Accra",    "Almaty",    "Amman",    "Ankara",  "Athens",   "Baku",     "Bangkok",  "Beirut",
    "Belgrade", "Berlin",    "Bern",     "Bogota",  "Boston",   "Brisbane", "Brussels", "Bucharest",
    "Budapest", "Cairo",     "Calgary",  "Caracas", "Chennai",  "Chicago",  "Colombo",  "Dakar",
    "Dallas",   "Denver",    "Dhaka",    "Doha",    "Dublin",   "Durban",   "Geneva",   "Glasgow",
    "Hamburg",  "Hanoi",     "Harare",   "Havana",  "Helsinki", "Houston",  "Jakarta",  "Kampala",
    "Karachi",  "Kigali",    "Kingston", "Krakow",  "Kyoto",    "Lagos",    "Lahore",   "Leipzig",
    "Lima",     "Lisbon",    "London",   "Luanda",  "Lusaka",   "Lyon",     "Madrid",   "Manila",
    "Medellin", "Milan",     "Minsk",    "Mombasa", "Montreal", "Moscow",   "Mumbai",   "Muscat",
    "Nairobi",  "Naples",    "Osaka",    "Oslo",    "Ottawa",   "Paris",    "Perth",    "Prague",
    "Quito",    "Rabat",     "Riga",     "Rome",    "Santiago", "Seattle",  "Seoul",    "Seville",
    "Sofia",    "Stockholm", "Sydney",   "Taipei",  "Tallinn",  "Tashkent", "Tbilisi",  "Tehran",
    "Tirana",   "Tokyo",     "Toronto",  "Tripoli", "Tunis",    "Vienna",   "Vilnius",  "Warsaw",
    "Windhoek", "Yerevan",   "Zagreb",   "Zurich",
};
