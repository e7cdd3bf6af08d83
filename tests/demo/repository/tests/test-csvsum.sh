#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later
set -eu

expect() {
        if [ "$2" != "$3" ]; then
                printf 'FAIL %s\n  expected: %s\n  got:      %s\n' "$1" "$2" "$3"
                exit 1
        fi
}

got=$(printf 'who,amount\nann,1.50\nbob,2\nann,-0.25\n' | ./csvsum who amount | tr '\t\n' ' ;')
expect "two groups" "ann 1.25 2;bob 2.00 1;" "$got"

got=$(printf 'who,amount\nann,one\n' | ./csvsum who amount 2>&1 || true)
expect "not a number" "csvsum: line 3: not an amount" "$got"

echo "test-csvsum: passed"
