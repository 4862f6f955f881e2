# deb.sh: the Debian package that CPack makes; sourced by run.sh. Nothing without CPack, dpkg-deb and dpkg-shlibdeps.
build=$(dirname "$dq")
if [ -f "$build/CPackConfig.cmake" ] && command -v cpack dpkg-deb dpkg-shlibdeps >/dev/null; then
    cpack --config "$build/CPackConfig.cmake" -G DEB -D CPACK_DEBIAN_COMPRESSION_TYPE=none -B "$work/made" >log 2>&1 || complain "deb: cpack: $(tail -n 5 log)"
    deb=$(find made -maxdepth 1 -name '*.deb')
    field() { dpkg-deb -f "$deb" "$1"; }
    [ "$(field Package)" = dq-diff ] && [ "$(field Section)" = science ] && [ "$(field Conflicts)" = dq ] &&
        [ -z "$(field Recommends)" ] || complain "deb: control: $(dpkg-deb -f "$deb")"
    field Depends | grep -q libhdf5 || complain "deb: depends on $(field Depends)"
    ! field Depends | grep -q -e -dev || complain "deb: depends on what builds it: $(field Depends)"
    dpkg-deb -x "$deb" tree
    [ "$(tree/usr/bin/dq --version)" = "$("$dq" --version)" ] || complain "deb: dq says $(tree/usr/bin/dq --version)"
    doc=tree/usr/share/doc/dq-diff
    present tree/usr/share/man/man1/dq-plan-kv.1.gz $doc/changelog.gz $doc/copyright $doc/docs/commands.md \
        tree/usr/share/bash-completion/completions/dq tree/usr/share/zsh/vendor-completions/_dq
    find tree -name '*.1' -o -name LICENSE -o -name site-functions | grep . && complain "deb: files that Debian does not want"
    gzip -dc tree/usr/share/man/man1/dq-plan-kv.1.gz | grep -q '^[.]SH OPTIONS' || complain "deb: a page is damaged"
    grep -q "^Copyright: $(sed -n 's/^Copyright (c) //p' "$repo/LICENSE")\$" $doc/copyright || complain "deb: $(cat $doc/copyright)"
    if command -v lintian >/dev/null; then
        lintian --allow-root --fail-on error "$deb" >"$top/out" 2>&1 || complain "deb: lintian: $(grep '^E' "$top/out")"
    fi
fi
