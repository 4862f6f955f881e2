# bash completion of dq, as dq help --completion bash prints it.
# _dq_of_COMMAND OPTION sets options, topics (of dq help), arguments (path or none), and of the option's value: value (words,
# path, other, or nothing where there is none) and words. _dq_names GROUP sets words, those after dq for ''.
# shellcheck shell=bash disable=SC2034

_dq_paths() {
    compopt -o filenames 2>/dev/null # fails where nobody presses a key
    mapfile -t COMPREPLY < <(compgen -f -- "$1")
    [[ ${#COMPREPLY[@]} -gt 0 ]] || compopt -o default 2>/dev/null
}

# _dq_offer WORDS CUR: CUR may be a list, of which the last part is completed with a word that is not in it.
_dq_offer() {
    local before='' left='' word
    if [[ $2 == *,* ]]; then before=${2%,*},; fi
    for word in $1; do
        [[ ,$before == *,$word,* ]] || left+=" $word"
    done
    mapfile -t COMPREPLY < <(compgen -P "$before" -W "$left" -- "${2##*,}")
}

# The option that the completed word is the value of, if it is one's: --data FILE, --data=FILE, --data NAME=FILE. bash makes
# a word of =.
_dq_option() {
    local -i i=$((COMP_CWORD - 1))
    [[ $cur != = ]] || i=COMP_CWORD
    while [[ i -gt 1 && ${COMP_WORDS[i]} == = ]]; do
        i=$((i - 1))
        [[ ${COMP_WORDS[i]} == -* ]] || i=$((i - 1))
    done
    option=${COMP_WORDS[i]}
    [[ $cur != = ]] || cur=
}

# dq help [COMMAND [TOPIC]], or one of its forms
_dq_help() {
    local -i at=2
    local command
    case ${COMP_WORDS[2]-} in
    --completion) words='bash zsh' ;;
    --man) at=3 ;;
    *) [[ $COMP_CWORD -gt 2 ]] || words='--man --completion --markdown --commands ' ;;
    esac
    if [[ $COMP_CWORD -eq $at ]]; then
        local forms=$words
        _dq_names ''
        words=$forms$words
    elif [[ $COMP_CWORD -eq $((at + 1)) && -z $words ]]; then
        command=${COMP_WORDS[at]}
        _dq_names "$command"
        if [[ -z $words && $at -eq 2 ]] && declare -F "_dq_of_$command" >/dev/null; then
            "_dq_of_$command" ''
            words=$topics
        fi
    fi
    _dq_offer "$words" "$cur"
}

_dq() {
    local cur=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]-} option='' options='' topics='' arguments=path value='' words=''
    COMPREPLY=()
    if [[ $COMP_CWORD -eq 1 ]]; then
        _dq_names ''
        _dq_offer "$words help version --help --version" "$cur"
        return
    elif [[ $command == help ]]; then
        _dq_help
        return
    fi
    _dq_names "$command"
    if [[ -n $words ]]; then
        if [[ $COMP_CWORD -eq 2 ]]; then
            _dq_offer "$words --help" "$cur"
            return
        fi
        command+=_${COMP_WORDS[2]}
        words=''
    fi
    declare -F "_dq_of_$command" >/dev/null || return 0
    _dq_option
    "_dq_of_$command" "$option"
    case $value in
    words) _dq_offer "$words" "$cur" ;;
    path) _dq_paths "$cur" ;;
    other) ;;
    *)
        if [[ $cur == -* || $arguments == none ]]; then
            _dq_offer "$options --help" "$cur"
        else
            _dq_paths "$cur"
        fi
        ;;
    esac
}

# COMMANDS
complete -F _dq dq
