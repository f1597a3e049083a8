#!/bin/sh
# Unpacks llama-server of Debian sid into a folder, without touching the system.
set -eu
folder=${1:?usage: fetch_llama_server.sh FOLDER}
mirror=$(sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\{0,1\}\(http[^ ]*\).*/\2/p' /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null | grep -v security | head -1)
: "${mirror:?no Debian mirror is configured}"
mkdir -p "$folder/apt/lists/partial" "$folder/apt/cache/archives/partial" "$folder/root"
: > "$folder/apt/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" > "$folder/apt/sources.list"
cat > "$folder/apt/apt.conf" <<CONF
Dir::Etc::sourcelist "$folder/apt/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$folder/apt/lists";
Dir::State::status "$folder/apt/status";
Dir::Cache "$folder/apt/cache";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
CONF
export APT_CONFIG="$folder/apt/apt.conf"
apt-get -q update
apt-get -q -y --download-only install llama.cpp-tools
for package in "$folder"/apt/cache/archives/*.deb; do
    dpkg -x "$package" "$folder/root"
done
rm -rf "$folder/apt"
find "$folder/root" -name llama-server
