#compdef dq
# zsh completion of dq, as dq help --completion zsh prints it.
# _dq_of_COMMAND completes what follows a command, _dq_names GROUP the names of its commands, those after dq for ''.

# dq help [COMMAND [TOPIC]], or one of its forms
_dq_help() {
    local -a forms=(--man --completion --markdown --commands)
    local topics=_dq_topics_$words[2]
    if [[ $words[2] == --completion ]]; then
        (( CURRENT != 3 )) || compadd bash zsh
        return
    elif [[ $words[2] == --man && CURRENT -gt 2 ]]; then
        shift words
        (( CURRENT-- ))
        topics=
    fi
    if (( CURRENT == 2 )); then
        _dq_names ''
        [[ $PREFIX != -* ]] || compadd -a forms
    elif (( CURRENT == 3 )) && ! _dq_names "$words[2]" && [[ -n $topics && -n ${(P)topics} ]]; then
        compadd -a $topics
    fi
}

_dq() {
    shift words
    (( CURRENT-- ))
    if (( CURRENT == 1 )); then
        _dq_names ''
        compadd help version
        [[ $PREFIX != -* ]] || compadd -- --help --version
        return
    elif [[ $words[1] == help ]]; then
        _dq_help
        return
    fi
    local command=$words[1]
    if (( CURRENT == 2 )); then
        _dq_names $command && return
    elif (( $+functions[_dq_of_${command}_$words[2]] )); then
        command+=_$words[2]
        shift words
        (( CURRENT-- ))
    fi
    (( ! $+functions[_dq_of_$command] )) || _dq_of_$command
}

# COMMANDS
if [[ $funcstack[1] == _dq ]]; then # among the functions that zsh loads when they are needed
    _dq "$@"
else
    compdef _dq dq
fi
