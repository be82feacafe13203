//! Value types of settings: parsed from text, and written back as the same text.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use arenite_control::images::{PullMode, RegistryRule};
use arenite_control::tenants::{Quota, TenantLimits};
use arenite_engine::VolumeAccess;
use arenite_engine::namespace::Volume;
use arenite_image::Mirror;
use arenite_model::{ImageName, Tier};
use serde::{Deserialize, Serialize};

/// Gives a type that has `FromStr` and `Display` the same text in TOML.
macro_rules! as_text {
    ($name:ty) => {
        impl TryFrom<String> for $name {
            type Error = String;
            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }
        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.to_string()
            }
        }
    };
}

/// Gives a type with one field the text of that field.
macro_rules! through {
    ($name:ident) => {
        impl FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                text.trim().parse().map(Self)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

/// When creates pull: `missing` or `never`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct ImagePull(pub(crate) PullMode);

as_text!(ImagePull);
through!(ImagePull);

/// A registry to pull from: `[TENANT=]HOST[:PORT][/PATH]`, or `*` as the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct ImageRegistry(pub(crate) RegistryRule);

as_text!(ImageRegistry);
through!(ImageRegistry);

/// A mirror: `docker.io=mirror.example:5000/hub`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct ImageMirror(pub(crate) Mirror);

as_text!(ImageMirror);
through!(ImageMirror);

/// A size in bytes, written as a number with an optional unit: `512MiB`, `10GiB`, `1048576`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Size(pub(crate) u64);

as_text!(Size);

const UNITS: [(&str, u64); 5] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl FromStr for Size {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a size: write a number and a unit, such as 512MiB or 10GiB");
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let factor = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "ki" | "kib" => 1 << 10,
            "m" | "mi" | "mib" => 1 << 20,
            "g" | "gi" | "gib" => 1 << 30,
            "t" | "ti" | "tib" => 1 << 40,
            _ => return Err(bad()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Self).ok_or_else(bad);
        }
        let fraction: f64 = number.parse().map_err(|_| bad())?;
        let bytes = fraction * factor as f64;
        // 2^53: up to there a float holds every whole number of bytes.
        if !(0.0..9.007e15).contains(&bytes) {
            return Err(bad());
        }
        Ok(Self(bytes as u64))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = UNITS.iter().find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        let (unit, factor) = exact.copied().unwrap_or(("B", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

impl Size {
    /// For tables: a rounded number in the largest unit that fits.
    pub(crate) fn short(self) -> String {
        let (unit, factor) = UNITS.into_iter().find(|(_, factor)| self.0 >= *factor).unwrap_or(("B", 1));
        let value = self.0 as f64 / factor as f64;
        if factor == 1 || value >= 100.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
    }
}

/// A template or image, and the number of its sandboxes to create in advance: `code=4`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct PoolOf {
    pub(crate) name: String,
    pub(crate) number: u32,
}

as_text!(PoolOf);

impl FromStr for PoolOf {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no pool: write a template or image and a number, such as code=4");
        let (name, number) = text.trim().rsplit_once('=').ok_or_else(bad)?;
        let number = number.trim().parse().map_err(|_| bad())?;
        if name.trim().is_empty() { Err(bad()) } else { Ok(Self { name: name.trim().to_owned(), number }) }
    }
}

impl fmt::Display for PoolOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.number)
    }
}

/// The cluster's image for a name of images: `base=registry.example/arenite/base:1`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct ImageOf {
    pub(crate) name: ImageName,
    pub(crate) reference: String,
}

as_text!(ImageOf);

impl FromStr for ImageOf {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no image: write a name and a reference, such as base=registry.example/arenite/base:1");
        let (name, reference) = text.trim().split_once('=').ok_or_else(bad)?;
        let reference = reference.trim();
        if reference.is_empty() || reference.contains(char::is_whitespace) {
            return Err(bad());
        }
        Ok(Self { name: name.trim().parse().map_err(|_| bad())?, reference: reference.to_owned() })
    }
}

impl fmt::Display for ImageOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.reference)
    }
}

/// The cluster's runtime class for a tier: `gvisor=runsc`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct ClassOf {
    pub(crate) tier: Tier,
    pub(crate) class: String,
}

as_text!(ClassOf);

impl FromStr for ClassOf {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no runtime class: write a tier and a class, such as gvisor=runsc");
        let (tier, class) = text.trim().split_once('=').ok_or_else(bad)?;
        let class = class.trim();
        if class.is_empty() || class.contains(char::is_whitespace) {
            return Err(bad());
        }
        Ok(Self { tier: tier.trim().parse().map_err(|_| bad())?, class: class.to_owned() })
    }
}

impl fmt::Display for ClassOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.tier, self.class)
    }
}

/// A limit of a tenant: `sandboxes=50`, `cpu=8`, `memory=64GiB`; `default` for the server's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct LimitOf {
    pub(crate) quota: Quota,
    pub(crate) limit: Option<u64>,
}

as_text!(LimitOf);

/// The names of limits.
const LIMITS: [(&str, Quota); 11] = [
    ("sandboxes", Quota::Sandboxes),
    ("creates", Quota::ConcurrentCreates),
    ("cpu", Quota::CpuMillis),
    ("memory", Quota::MemoryBytes),
    ("disk", Quota::DiskBytes),
    ("snapshots", Quota::Snapshots),
    ("trajectories", Quota::TrajectoryBytes),
    ("requests", Quota::RequestsPerSecond),
    ("timeout", Quota::MaxTimeoutSeconds),
    ("volumes", Quota::Volumes),
    ("volume-space", Quota::VolumeBytes),
];

impl FromStr for LimitOf {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, given) = text.trim().split_once('=').ok_or_else(|| format!("{text:?} is no limit: write NAME=VALUE"))?;
        let names = || LIMITS.map(|(name, _)| name).join(", ");
        let found = LIMITS.iter().find(|(known, _)| *known == name.trim());
        let quota = found.map(|(_, quota)| *quota).ok_or_else(|| format!("there is no limit {name:?}; there are {}", names()))?;
        let given = given.trim();
        let limit = match quota {
            _ if given == "default" => None,
            Quota::MemoryBytes | Quota::DiskBytes | Quota::TrajectoryBytes | Quota::VolumeBytes => Some(given.parse::<Size>()?.0),
            Quota::CpuMillis => Some(crate::cli::cores(given)?.into()),
            Quota::MaxTimeoutSeconds => Some(given.parse::<Span>()?.0.as_secs()),
            _ => Some(given.parse().map_err(|_| format!("{given:?} is no number"))?),
        };
        // Refused where it is written, not only by the server.
        TenantLimits::default().set(quota, limit)?;
        Ok(Self { quota, limit })
    }
}

impl fmt::Display for LimitOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = LIMITS.iter().find(|(_, quota)| *quota == self.quota).map_or("", |(name, _)| name);
        write!(f, "{name}=")?;
        match (self.limit, self.quota) {
            (None, _) => f.write_str("default"),
            (Some(bytes), Quota::MemoryBytes | Quota::DiskBytes | Quota::TrajectoryBytes | Quota::VolumeBytes) => {
                Size(bytes).fmt(f)
            }
            (Some(millis), Quota::CpuMillis) => (millis as f64 / 1000.0).fmt(f),
            (Some(seconds), Quota::MaxTimeoutSeconds) => write!(f, "{seconds}s"),
            (Some(number), _) => number.fmt(f),
        }
    }
}

/// The least isolation of a tenant's sandboxes; none: the server's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MinTier(pub(crate) Option<Tier>);

impl FromStr for MinTier {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "default" => Ok(Self(None)),
            tier => tier.parse().map(|tier| Self(Some(tier))),
        }
    }
}

/// A host directory and its name for sandboxes: `data=/srv/data`, `code=/srv/code:ro`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct VolumeOf {
    pub(crate) name: String,
    dir: PathBuf,
    read_only: bool,
}

as_text!(VolumeOf);

impl VolumeOf {
    pub(crate) fn volume(&self) -> Volume {
        Volume { dir: self.dir.clone(), read_only: self.read_only }
    }
}

impl FromStr for VolumeOf {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!("{text:?} is no volume: write a name and an absolute directory, such as data=/srv/data or data=/srv/data:ro")
        };
        let (name, dir) = text.split_once('=').ok_or_else(bad)?;
        let (dir, read_only) = dir.strip_suffix(":ro").map_or((dir, false), |dir| (dir, true));
        let is_name = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if name.is_empty() || name.len() > 63 || !name.bytes().all(is_name) || !dir.starts_with('/') {
            return Err(bad());
        }
        Ok(Self { name: name.to_owned(), dir: dir.into(), read_only })
    }
}

impl fmt::Display for VolumeOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}{}", self.name, self.dir.display(), if self.read_only { ":ro" } else { "" })
    }
}

/// A bucket for volumes, and the file with its address and credentials: `shared=/etc/arenite/shared.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct BucketOf {
    pub(crate) name: String,
    pub(crate) file: PathBuf,
}

as_text!(BucketOf);

impl BucketOf {
    pub(crate) fn with_file(self, change: impl Fn(PathBuf) -> PathBuf) -> Self {
        Self { file: change(self.file), name: self.name }
    }
}

impl FromStr for BucketOf {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            let shown = if text.contains("://") { "an address" } else { text };
            format!("{shown:?} is no bucket: write a name and a file with its address, such as shared=/etc/arenite/shared.toml")
        };
        let (name, file) = text.split_once('=').ok_or_else(bad)?;
        let is_name = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        // An address may hold credentials, which are not on command lines.
        if name.is_empty() || name.len() > 63 || !name.bytes().all(is_name) || file.is_empty() || file.contains("://") {
            return Err(bad());
        }
        Ok(Self { name: name.to_owned(), file: file.into() })
    }
}

impl fmt::Display for BucketOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.file.display())
    }
}

/// A label of a node: `zone=a`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct NodeLabel {
    pub(crate) key: String,
    pub(crate) value: String,
}

as_text!(NodeLabel);

impl FromStr for NodeLabel {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!("{text:?} is no label: write a key and a value of up to 63 letters, digits, -, _, . and /, such as zone=a")
        };
        let (key, value) = text.trim().split_once('=').ok_or_else(bad)?;
        let is_part = |part: &str| {
            let is_allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/');
            (1..=63).contains(&part.len()) && part.bytes().all(is_allowed)
        };
        if !is_part(key) || !is_part(value) {
            return Err(bad());
        }
        Ok(Self { key: key.to_owned(), value: value.to_owned() })
    }
}

impl fmt::Display for NodeLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

/// A length of time, written as a number with an optional unit: `90s`, `10m`, `2h`, `1d`; seconds without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

impl FromStr for Span {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a time: write a number and a unit, such as 90s, 10m, 2h or 1d");
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let factor = match unit {
            "" | "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return Err(bad()),
        };
        let seconds = number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)).ok_or_else(bad)?;
        Ok(Self(Duration::from_secs(seconds)))
    }
}

/// A range of addresses, such as `10.0.0.0/8` or `fd00::/8`; a bare address is a range of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct AddressRange {
    pub(crate) address: IpAddr,
    pub(crate) prefix: u8,
}

as_text!(AddressRange);

impl FromStr for AddressRange {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not an address range: write one such as 10.0.0.0/8 or fd00::/8");
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| bad())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.unwrap_or(most);
        if prefix > most {
            return Err(bad());
        }
        let beyond = match address {
            IpAddr::V4(v4) => v4.to_bits().checked_shl(prefix.into()).unwrap_or(0) != 0,
            IpAddr::V6(v6) => v6.to_bits().checked_shl(prefix.into()).unwrap_or(0) != 0,
        };
        if beyond {
            return Err(format!("{text:?} has bits set beyond its /{prefix}: write the first address of the range"));
        }
        Ok(Self { address, prefix })
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// An address to listen on, or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum OptionalListen {
    Off,
    At(SocketAddr),
}

as_text!(OptionalListen);

impl FromStr for OptionalListen {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        text.parse()
            .map(Self::At)
            .map_err(|_| format!("{text:?} is neither off nor an address with a port such as 127.0.0.1:18890"))
    }
}

impl fmt::Display for OptionalListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}

/// A DNS server; port 53 by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Resolver(pub(crate) SocketAddr);

as_text!(Resolver);

impl FromStr for Resolver {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let address = text.parse::<SocketAddr>().or_else(|_| text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 53)));
        address.map(Self).map_err(|_| format!("{text:?} is not a resolver's address: write one such as 192.0.2.53"))
    }
}

impl fmt::Display for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.port() == 53 { self.0.ip().fmt(f) } else { self.0.fmt(f) }
    }
}

/// Text that is never shown, neither in the log nor by `--show-config`.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secret(pub(crate) String);

impl FromStr for Secret {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("(hidden)")
    }
}

/// A version of Agent-Sandbox's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub(crate) enum AgentSandboxVersion {
    #[serde(rename = "0.1")]
    #[value(name = "0.1")]
    First,
    #[serde(rename = "0.8")]
    #[value(name = "0.8")]
    Newer,
}

impl From<AgentSandboxVersion> for arenite_gateway::AgentSandboxVersion {
    fn from(version: AgentSandboxVersion) -> Self {
        match version {
            AgentSandboxVersion::First => Self::First,
            AgentSandboxVersion::Newer => Self::Newer,
        }
    }
}

/// What runs the sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EngineKind {
    Namespace,
    Docker,
    Kubernetes,
}

/// Which nodes can mount a volume's claim at the same time, in Kubernetes' words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(crate) enum ClaimAccess {
    ReadWriteOnce,
    ReadWriteMany,
}

impl From<ClaimAccess> for VolumeAccess {
    fn from(access: ClaimAccess) -> Self {
        match access {
            ClaimAccess::ReadWriteOnce => Self::ReadWriteOnce,
            ClaimAccess::ReadWriteMany => Self::ReadWriteMany,
        }
    }
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_back_as_written() {
        for (text, bytes) in
            [("0", 0), ("1048576", 1 << 20), ("512MiB", 512 << 20), ("10g", 10 << 30), ("1.5GiB", 3 << 29), ("2 Ki", 2048)]
        {
            let size: Size = text.parse().unwrap();
            assert_eq!(size.0, bytes, "{text}");
            assert_eq!(size.to_string().parse::<Size>().unwrap(), size, "{text}");
        }
        for bad in ["", "GiB", "-1", "1XB", "1..5G", "99999999999999999999", "999999999TiB"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
        assert_eq!(Size(1536 << 20).short(), "1.5 GiB");
    }

    #[test]
    fn limits_read_back_as_written() {
        for (text, quota, limit) in [
            ("sandboxes=50", Quota::Sandboxes, Some(50)),
            ("creates=0", Quota::ConcurrentCreates, Some(0)),
            ("cpu=1.5", Quota::CpuMillis, Some(1500)),
            ("memory=64GiB", Quota::MemoryBytes, Some(64 << 30)),
            ("disk=1TiB", Quota::DiskBytes, Some(1 << 40)),
            ("trajectories=512MiB", Quota::TrajectoryBytes, Some(512 << 20)),
            ("requests=100", Quota::RequestsPerSecond, Some(100)),
            ("memory=default", Quota::MemoryBytes, None),
            ("timeout=7200s", Quota::MaxTimeoutSeconds, Some(7200)),
            ("volumes=20", Quota::Volumes, Some(20)),
            ("volume-space=1TiB", Quota::VolumeBytes, Some(1 << 40)),
        ] {
            let read: LimitOf = text.parse().unwrap();
            assert_eq!((read, read.to_string().as_str()), (LimitOf { quota, limit }, text));
        }
        for bad in [
            "",
            "memory",
            "volumes=x",
            "sandboxes=1.5",
            "sandboxes=-1",
            "memory=x",
            "cpu=x",
            "cpu=-1",
            "requests=0",
            "cpu=NaN",
            "timeout=0",
        ] {
            assert!(bad.parse::<LimitOf>().is_err(), "{bad}");
        }
    }

    #[test]
    fn buckets_read_back_as_written_and_have_no_address() {
        for text in ["shared=/etc/arenite/shared.toml", "a-1=bucket.toml"] {
            assert_eq!(text.parse::<BucketOf>().unwrap().to_string(), text);
        }
        for bad in ["", "shared", "=x", "shared=", "A=/x", "shared=s3://key:hidden@bucket"] {
            let error = bad.parse::<BucketOf>().unwrap_err();
            assert!(!error.contains("hidden"), "{error}");
        }
    }

    #[test]
    fn labels_of_nodes_read_back_as_written() {
        for text in ["zone=a", "example.com/gpu=h100_80", "a=1"] {
            assert_eq!(text.parse::<NodeLabel>().unwrap().to_string(), text);
        }
        for bad in ["", "zone", "zone=", "=a", "zone=a b", "zone=a=b"] {
            assert!(bad.parse::<NodeLabel>().is_err(), "{bad}");
        }
    }

    #[test]
    fn times_need_a_known_unit_and_do_not_overflow() {
        assert_eq!("2h".parse::<Span>().unwrap().0.as_secs(), 7200);
        assert_eq!("45".parse::<Span>().unwrap().0.as_secs(), 45);
        for bad in ["", "h", "1w", "1.5h", "-1s", "999999999999999999d"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_range_must_start_at_its_first_address() {
        for good in ["10.0.0.0/8", "0.0.0.0/0", "::/0", "fd00::/8", "192.0.2.7/32"] {
            assert_eq!(good.parse::<AddressRange>().unwrap().to_string(), good);
        }
        assert_eq!("192.0.2.7".parse::<AddressRange>().unwrap().prefix, 32);
        for bad in ["10.0.0.1/8", "10.0.0.0/33", "fd00::1/8", "x/8", "10.0.0.0/"] {
            assert!(bad.parse::<AddressRange>().is_err(), "{bad}");
        }
    }
}
