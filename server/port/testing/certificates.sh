#!/bin/sh
# Makes certificates for tests, in PEM, with openssl: certificates.sh FOLDER NAMES. The files NAME.pem and NAME.key are
#
#   ca, other_ca    two authorities
#   server          of a server that has NAMES, such as IP:10.0.0.1,DNS:host
#   expired         the same, and has expired
#   client          of a client that is called iris
#   foreign         the same, but of other_ca
set -eu
cd "$1"

# authority NAME
authority() {
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1.key" -out "$1.pem" -days 30 \
    -subj "/CN=the $1 of tests" -addext basicConstraints=critical,CA:TRUE
}

# certificate NAME AUTHORITY DAYS COMMON_NAME NAMES
certificate() {
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1.key" -out "$1.request" -subj "/CN=$4"
  echo "subjectAltName=$5" >"$1.more"
  openssl x509 -req -in "$1.request" -CA "$2.pem" -CAkey "$2.key" -CAcreateserial -days "$3" -extfile "$1.more" \
    -out "$1.pem"
}

authority ca
authority other_ca
certificate server ca 30 server "$2"
certificate expired ca -1 server "$2"
certificate client ca 30 iris DNS:iris
certificate foreign other_ca 30 iris DNS:iris
