//! Layers from a script of bytes: each byte chooses an entry's kind, a part of a path, or a number. All scripts are valid, so the
//! fuzzer spends its time on combinations of entries.

use std::path::Path;

use tar::Header;

/// Maximum number of layers.
const LAYERS: usize = 3;
/// Maximum number of entries of all layers.
const ENTRIES: usize = 48;

const PARTS: [&[u8]; 20] = [
    b"a",
    b"b",
    b"c",
    b"..",
    b".",
    b"",
    b"dev",
    b"etc",
    b"link",
    b".wh.a",
    b".wh.b",
    b".wh..wh..opq",
    b".wh.",
    b".wh..",
    b".wh...",
    b".wh..wh.x",
    b"canary",
    b"\xff\xfe",
    b"with space",
    &[b'n'; 255],
];
const KINDS: [u8; 16] = [b'0', b'0', b'5', b'5', b'2', b'2', b'1', b'1', b'6', b'3', b'4', b'7', b'S', b'x', b'L', b'K'];
const MODES: [u32; 8] = [0o644, 0o755, 0o4755, 0o7777, 0, 0o1777, 0o2770, u32::MAX >> 11];
const NUMBERS: [u64; 12] = [0, 1, 2, 511, 512, 513, 1000, 65_535, 65_536, u32::MAX as u64, i64::MAX as u64, u64::MAX];
const KEYS: [&str; 22] = [
    "path",
    "linkpath",
    "uid",
    "gid",
    "size",
    "mtime",
    "SCHILY.xattr.user.a",
    "SCHILY.xattr.user.overlay.opaque",
    "SCHILY.xattr.user.overlay.redirect",
    "SCHILY.xattr.security.capability",
    "SCHILY.xattr.security.selinux",
    "SCHILY.xattr.trusted.overlay.opaque",
    "SCHILY.xattr.",
    "SCHILY.xattr.user.",
    "GNU.sparse.major",
    "GNU.sparse.map",
    "GNU.sparse.size",
    "GNU.sparse.realsize",
    "GNU.sparse.offset",
    "GNU.sparse.numbytes",
    "GNU.sparse.name",
    "comment",
];
const VALUES: [&[u8]; 12] =
    [b"0", b"1", b"512", b"65536", b"-1", b"1.5", b"18446744073709551615", b"0,512", b"512,1,0,1", b"y", b"", b"1000000000"];

struct Script<'a> {
    bytes: &'a [u8],
    decoy: &'a Path,
}

impl Script<'_> {
    /// The next byte; 0 after the end.
    fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((first, rest)) => {
                self.bytes = rest;
                *first
            }
            None => 0,
        }
    }

    fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    fn path(&mut self) -> Vec<u8> {
        let shape = self.byte();
        let mut path = match shape >> 5 {
            1 => b"/".to_vec(),
            2 => [self.decoy.as_os_str().as_encoded_bytes(), b"/"].concat(),
            3 => b"../../../../decoy/".to_vec(),
            _ => Vec::new(),
        };
        // Deep paths are rare.
        let parts = if shape & 31 == 31 { 210 } else { usize::from(shape & 3) + 1 };
        let names: Vec<&[u8]> = (0..parts).map(|_| self.choose(&PARTS)).collect();
        path.extend(names.join(&b'/'));
        path
    }

    /// A record of a PAX header.
    fn record(&mut self) -> Vec<u8> {
        let key = self.choose(&KEYS);
        let value = match self.byte() % 4 {
            0 => self.path(),
            1 => self.choose(&NUMBERS).to_string().into_bytes(),
            _ => self.choose(&VALUES).to_vec(),
        };
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while rest + length.to_string().len() != length {
            length = rest + length.to_string().len();
        }
        [format!("{length} {key}=").as_bytes(), &value, b"\n"].concat()
    }

    fn entry(&mut self, out: &mut Vec<u8>) {
        let kind = self.choose(&KINDS);
        let path = self.path();
        let content = match kind {
            b'x' => (0..self.byte() % 6 + 1).flat_map(|_| self.record()).collect(),
            b'L' | b'K' => [&self.path()[..], b"\0"].concat(),
            // A map of a sparse file may be in it.
            b'0' if self.byte() % 8 == 7 => {
                let mut map = Vec::new();
                for _ in 0..self.byte() % 8 {
                    map.extend(format!("{}\n", self.choose(&NUMBERS)).bytes());
                }
                map.resize(map.len().next_multiple_of(512), 0);
                map
            }
            b'0' | b'7' | b'S' => vec![self.byte(); self.choose(&[0, 1, 511, 512, 513, 2048, 70_000])],
            _ => Vec::new(),
        };
        let mut header = Header::new_gnu();
        let name = &mut header.as_old_mut().name;
        let length = path.len().min(name.len());
        name[..length].copy_from_slice(&path[..length]);
        header.as_old_mut().linkflag = [kind];
        if matches!(kind, b'1' | b'2') {
            let link = self.path();
            let field = &mut header.as_old_mut().linkname;
            let length = link.len().min(field.len());
            field[..length].copy_from_slice(&link[..length]);
        }
        header.set_size(if self.byte() == 255 { self.choose(&NUMBERS) } else { content.len() as u64 });
        header.set_mode(self.choose(&MODES));
        let is_odd = self.byte() > 240;
        header.set_uid(if is_odd { self.choose(&NUMBERS) } else { 1000 });
        header.set_gid(0);
        header.set_mtime(if is_odd { self.choose(&NUMBERS) } else { 1 });
        if matches!(kind, b'3' | b'4') {
            let _ = header.set_device_major(1).and_then(|()| header.set_device_minor(3));
        }
        if kind == b'S' {
            let pieces = usize::from(self.byte() % 5);
            let gnu = header.as_gnu_mut().expect("it is a header of GNU's tar");
            gnu.set_real_size(self.choose(&NUMBERS));
            for piece in gnu.sparse.iter_mut().take(pieces) {
                piece.set_offset(self.choose(&NUMBERS));
                piece.set_length(self.choose(&NUMBERS));
            }
            gnu.isextended = [u8::from(self.byte() > 250)];
        }
        header.set_cksum();
        out.extend_from_slice(header.as_bytes());
        out.extend_from_slice(&content);
        out.resize(out.len().next_multiple_of(512), 0);
    }
}

/// The layers of a script.
pub fn layers(bytes: &[u8], decoy: &Path) -> Vec<Vec<u8>> {
    let mut script = Script { bytes, decoy };
    let mut layers = vec![Vec::new()];
    for _ in 0..ENTRIES {
        if script.bytes.is_empty() {
            break;
        }
        let next = script.byte();
        if next > 224 && layers.len() < LAYERS {
            layers.push(Vec::new());
        }
        let layer = layers.last_mut().expect("there is one");
        script.entry(layer);
    }
    layers
}
