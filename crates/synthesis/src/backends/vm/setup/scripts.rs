//! Scripts that run in VMs, with their inputs as arguments.

/// Fetches `$1` to `$2`, at most `$3` bytes, with any tool that the VM has.
pub(in crate::backends::vm) const DOWNLOAD: &str = r#"
mkdir -p -- "$(dirname -- "$2")" || exit 1
part="$2.part"
if command -v curl >/dev/null; then
  curl -fsSL --retry 2 --connect-timeout 30 --max-filesize "$3" -o "$part" -- "$1"
elif command -v wget >/dev/null; then
  wget -q -t 3 -T 60 -O "$part" -- "$1"
elif command -v python3 >/dev/null; then
  python3 -c 'import shutil, sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=60) as there, open(sys.argv[2], "wb") as here:
    shutil.copyfileobj(there, here)' "$1" "$part"
else
  echo "the VM has none of curl, wget and python3" >&2; exit 1
fi
code=$?
if [ $code -ne 0 ]; then rm -f -- "$part"; echo "it could not be fetched" >&2; exit $code; fi
mv -f -- "$part" "$2"
"#;

pub(super) const WALLPAPER: &str = r#"
[ -e "$1" ] || { echo "there is no file $1" >&2; exit 1; }
gsettings set org.gnome.desktop.background picture-uri "file://$1" || exit 1
gsettings set org.gnome.desktop.background picture-uri-dark "file://$1" 2>/dev/null || true
"#;

/// Whether `$1` is a file or a program.
pub(super) const OPENABLE: &str = r#"
if [ -e "$1" ]; then echo file; elif command -v -- "$1" >/dev/null; then echo program
else echo "there is no file or program $1" >&2; exit 1; fi
"#;

/// Waits up to `$3` seconds for a window with `$1` or `$2` in its title, and brings it to the front. Without wmctrl, this can't
/// be checked.
pub(super) const OPENED: &str = r#"
command -v wmctrl >/dev/null || exit 0
left=$3
while [ "$left" -gt 0 ]; do
  id=$(wmctrl -l 2>/dev/null | grep -F -e "$1" -e "$2" | head -n 1 | cut -d ' ' -f 1)
  if [ -n "$id" ]; then wmctrl -i -a "$id"; exit 0; fi
  sleep 1; left=$((left - 1))
done
echo "no window of it opened within $3 s" >&2
exit 1
"#;

/// `$1` are wmctrl's flags, `$2` the window's name.
pub(super) const CLOSE_OR_ACTIVATE: &str = r#"
command -v wmctrl >/dev/null || { echo "windows are found with wmctrl, which the VM does not have" >&2; exit 1; }
wmctrl "$1" "$2" || { echo "there is no such window" >&2; exit 1; }
"#;

/// Sends programs of the desktop and of later shells through `$1`; `$2` is its host and `$3` its port.
pub(super) const PROXY: &str = r#"
for name in http_proxy https_proxy HTTP_PROXY HTTPS_PROXY; do
  printf "export %s='%s'\n" "$name" "$1" >> "$HOME/.profile" && printf "export %s='%s'\n" "$name" "$1" >> "$HOME/.bashrc" || exit 1
done
command -v gsettings >/dev/null || exit 0
gsettings set org.gnome.system.proxy mode manual
for kind in http https; do
  gsettings set org.gnome.system.proxy.$kind host "$2"; gsettings set org.gnome.system.proxy.$kind port "$3"
done
exit 0
"#;

/// Adds visits to Chrome's history; `$1` is a list of `{url, title, visit_time_from_now_in_seconds}`.
pub(super) const HISTORY: &str = r#"
exec python3 -c '
import json, os, pathlib, sqlite3, sys, time
home = pathlib.Path.home()
places = [home / ".config/google-chrome/Default/History", home / ".config/chromium/Default/History",
          home / "snap/chromium/common/chromium/Default/History"]
place = next((place for place in places if place.exists()), None)
if place is None:
    raise SystemExit("Chrome has no history here yet; start it once before")
base = sqlite3.connect(place, timeout=10)
for visit in json.loads(sys.argv[1]):
    # Microseconds since 1601.
    at = int((time.time() - float(visit.get("visit_time_from_now_in_seconds", 0)) + 11644473600) * 1e6)
    row = base.execute("INSERT INTO urls (url, title, visit_count, typed_count, last_visit_time, hidden) VALUES (?, ?, 1, 0, ?, 0)",
                       (visit["url"], visit.get("title", ""), at))
    base.execute("INSERT INTO visits (url, visit_time, from_visit, transition, segment_id, visit_duration) VALUES (?, ?, 0, 805306368, 0, 0)",
                 (row.lastrowid, at))
base.commit()
' "$1"
"#;

/// Calls Chrome's debugger: `$1` is the method, `$2` the address, `$3` the seconds until it listens.
pub(super) const DEBUGGER: &str = r#"
left=$3
while :; do
  if command -v curl >/dev/null; then
    curl -fsS -m 20 --max-filesize 4000000 --noproxy '*' -X "$1" -- "$2" && exit 0
  else
    python3 -c 'import sys, urllib.request as u
opener = u.build_opener(u.ProxyHandler({}))
sys.stdout.write(opener.open(u.Request(sys.argv[2], method=sys.argv[1]), timeout=20).read(4000000).decode())' "$1" "$2" && exit 0
  fi
  [ "$left" -gt 0 ] || exit 1
  sleep 1; left=$((left - 1))
done
"#;
