#!/usr/bin/env bash
# Make a private certificate authority and a server certificate signed by it, for HOST (default 127.0.0.1).
# Usage: certificates.sh DIRECTORY [HOST]. For trials only: in earnest, use your organisation's authority.
set -euo pipefail
dir=${1:?usage: certificates.sh DIRECTORY [HOST]}
host=${2:-127.0.0.1}
mkdir -p "$dir" && cd "$dir" && umask 077
if [[ $host =~ ^[0-9.]+$ ]]; then name="IP:$host"; else name="DNS:$host"; fi
openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj "/CN=fedseal example authority" \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" \
    -keyout ca.key -out ca.pem 2>/dev/null
openssl req -newkey rsa:2048 -nodes -subj "/CN=$host" -keyout server.key -out server.csr 2>/dev/null
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -out server.pem \
    -extfile <(printf 'subjectAltName=%s,IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n' "$name") 2>/dev/null
rm -f server.csr
echo "$PWD: ca.pem for clients, server.pem and server.key for the SuperLink"
