/* test_container_index: /index says of every dataset what the dataset itself says, or the container is
 * refused before anything is read.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "checkpoint/h5.h"
#include "tests/rigs/test_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char model[] = DQ_TEST_DIR "/golden/models/diffllama-f32";
static const char container[] = "a.h5";

/* The container whose rows tell lies: where /index is in the file, and a copy of it. */
typedef struct book {
    haddr_t at;
    size_t width;
    hsize_t rows;
    uint8_t *row, *was; /* [rows][width] */
    dq_h5_column col[DQ_INDEX_COLUMNS];
} book;

static void read_book(book *b)
{
    hid_t file = H5Fopen(at(container), H5F_ACC_RDONLY, H5P_DEFAULT);
    hid_t data = H5Dopen2(file, "/index", H5P_DEFAULT), type = H5Dget_type(data);
    hid_t space = H5Dget_space(data);
    assert_int_equal(H5Sget_simple_extent_dims(space, &b->rows, NULL), 1);
    b->at = H5Dget_offset(data);
    b->width = H5Tget_size(type);
    b->row = malloc(b->rows * b->width);
    b->was = malloc(b->rows * b->width);
    assert_true(b->row && b->was);
    assert_true(H5Dread(data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, b->row) >= 0);
    memcpy(b->was, b->row, b->rows * b->width);
    dq_h5_index_columns(b->col, 1);
    for (int i = 0; i < DQ_INDEX_COLUMNS; i++) {
        unsigned at = (unsigned)H5Tget_member_index(type, b->col[i].name);
        b->col[i].at = H5Tget_member_offset(type, at);
        hid_t m = H5Tget_member_type(type, at);
        b->col[i].bytes = H5Tget_size(m);
        H5Tclose(m);
    }
    H5Sclose(space);
    H5Tclose(type);
    H5Dclose(data);
    assert_true(H5Fclose(file) >= 0);
}

static void open_book(book *b)
{
    const dq_quantize_settings s = settings_of(4, 8, DQ_ASYM);
    make_container(model, at(container), &s);
    read_book(b);
}

static void write_book(const book *b)
{
    FILE *f = fopen(at(container), "r+b");
    assert_true(f && fseek(f, (long)b->at, SEEK_SET) == 0);
    assert_int_equal(fwrite(b->row, b->width, b->rows, f), b->rows);
    assert_int_equal(fclose(f), 0);
}

static void close_book(book *b)
{
    free(b->row);
    free(b->was);
}

static uint8_t *field(book *b, hsize_t row, int column)
{
    return b->row + row * b->width + b->col[column].at;
}

static void put_text(book *b, hsize_t row, int column, const char *text)
{
    assert_true(strlen(text) <= b->col[column].bytes);
    memset(field(b, row, column), 0, b->col[column].bytes);
    memcpy(field(b, row, column), text, strlen(text));
}

static void put_int(book *b, hsize_t row, int column, int64_t v)
{
    int32_t few = (int32_t)v;
    if (b->col[column].bytes == sizeof v)
        memcpy(field(b, row, column), &v, sizeof v);
    else
        memcpy(field(b, row, column), &few, sizeof few);
}

static int64_t get_int(book *b, hsize_t row, int column)
{
    int64_t v = 0;
    memcpy(&v, field(b, row, column), b->col[column].bytes);
    return v;
}

static void expect(book *b, hsize_t row, bool lie, const char *what)
{
    dq_err err = {0};
    dq_container *c;
    write_book(b);
    if (dq_container_open(&c, at(container), &err) != (lie ? DQ_DAMAGED : DQ_OK))
        fail_msg("row %d, %s: %d %s", (int)row, what, err.code, err.text);
    dq_container_close(c);
    memcpy(b->row, b->was, b->rows * b->width);
}

TEST(sizes_that_lie_are_refused)
{
    static const int columns[] = {DQ_COL_BITS, DQ_COL_GROUP, DQ_COL_ROWS, DQ_COL_COLS,
                                  DQ_COL_BYTES};
    book b;
    open_book(&b);
    for (hsize_t r = 0; r < b.rows; r++) {
        for (size_t k = 0; k < sizeof columns / sizeof *columns; k++) {
            int64_t v = get_int(&b, r, columns[k]);
            const int64_t lies[] = {0, -1, v + 1, 2 * v, v / 2, INT64_MAX};
            for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
                put_int(&b, r, columns[k], lies[i]);
                expect(&b, r, get_int(&b, r, columns[k]) != v, b.col[columns[k]].name);
            }
        }
    }
    close_book(&b);
}

/* Two columns that agree with each other, and with nothing else. */
TEST(products_that_lie_are_refused)
{
    book b;
    open_book(&b);
    for (hsize_t r = 0; r < b.rows; r++) {
        int64_t rows = get_int(&b, r, DQ_COL_ROWS), cols = get_int(&b, r, DQ_COL_COLS);
        put_int(&b, r, DQ_COL_ROWS, cols);
        put_int(&b, r, DQ_COL_COLS, rows);
        expect(&b, r, rows != cols, "rows and cols change places");
        put_int(&b, r, DQ_COL_ROWS, rows * cols);
        put_int(&b, r, DQ_COL_COLS, 1);
        expect(&b, r, cols != 1, "a vector");
    }
    close_book(&b);
}

TEST(encodings_that_lie_are_refused)
{
    static const char *const names[] = {"int-packed", "int-zero", "scale", "zero", "dense",
                                        "text",       "bytes",    "table", "",     "other"};
    book b;
    open_book(&b);
    for (hsize_t r = 0; r < b.rows; r++) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            bool lie = strncmp((const char *)field(&b, r, DQ_COL_ENCODING), names[i],
                               b.col[DQ_COL_ENCODING].bytes) != 0;
            put_text(&b, r, DQ_COL_ENCODING, names[i]);
            expect(&b, r, lie, names[i]);
            /* codes or scales of more rows than there are bytes */
            put_text(&b, r, DQ_COL_ENCODING, names[i]);
            put_int(&b, r, DQ_COL_ROWS, get_int(&b, r, DQ_COL_BYTES) + 1);
            expect(&b, r, true, names[i]);
        }
    }
    close_book(&b);
}

/* Every tensor is the same dataset under another name: a small file that would take long to read. */
TEST(one_dataset_has_one_name)
{
    static const char target[] = "/tensors/model.embed_tokens.weight";
    dq_err err = {0};
    dq_container *c;
    book b;
    hsize_t from = 0;
    open_book(&b);
    hid_t file = H5Fopen(at(container), H5F_ACC_RDWR, H5P_DEFAULT);
    while (strncmp((const char *)field(&b, from, DQ_COL_PATH), target, sizeof target - 1) != 0)
        from++;
    for (hsize_t r = from + 1; r < b.rows; r++) {
        char name[256], *tail;
        snprintf(name, sizeof name, "%.*s", (int)b.col[DQ_COL_PATH].bytes,
                 (const char *)field(&b, r, DQ_COL_PATH));
        if (strncmp(name, "/tensors/", 9) != 0) break;
        if ((tail = strstr(name, "/packed"))) *tail = 0;
        if ((tail = strstr(name, "/scale"))) memcpy(tail, ".b", 3);
        if ((tail = strstr(name, "/zero"))) memcpy(tail, ".c", 3);
        H5Ldelete(file, name, H5P_DEFAULT);
        assert_true(H5Lcreate_hard(file, target, file, name, H5P_DEFAULT, H5P_DEFAULT) >= 0);
        memcpy(b.row + r * b.width, b.row + from * b.width, b.width);
        put_text(&b, r, DQ_COL_PATH, name);
    }
    assert_true(H5Fclose(file) >= 0);
    write_book(&b);
    assert_int_equal(dq_container_open(&c, at(container), &err), DQ_DAMAGED);
    if (!strstr(err.text, "more bytes than the file has")) fail_msg("%s", err.text);
    close_book(&b);
}

FIXTURES(folder_begin, folder_end)
