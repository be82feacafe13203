//! The server's configuration: flag over `ARENITE_*` variable over file over default.
//!
//! One struct, [`Settings`], is read from the command line, the environment and TOML, so a setting has one name:
//! `--prepared-slots`, `ARENITE_PREPARED_SLOTS` and `prepared_slots`. [`Settings::resolve`] returns the complete [`Config`].

mod kubernetes;
mod trajectories;
pub(crate) mod values;

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arenite_control::images::PullMode;
use arenite_control::secrets::SecretKeySource;
use arenite_control::store::{AddressError, PostgresAddress};
use arenite_engine::KubernetesConfig;
use arenite_engine::docker::{DEFAULT_GVISOR_RUNTIME, DEFAULT_SOCKET};
use arenite_engine::namespace::buckets::BucketStore;
use arenite_gateway::{AuthError, Authentication, Certificates, TlsError, TokenRules, TraceConfig};
use arenite_model::{ImageName, NodeName, Tier};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub(crate) use trajectories::TrajectoryStore;
use values::{
    AddressRange, AgentSandboxVersion, BucketOf, ClaimAccess, ClassOf, EngineKind, ImageMirror, ImageOf, ImagePull,
    ImageRegistry, LimitOf, LogFormat, NodeLabel, OptionalListen, PoolOf, Resolver, Secret, Size, VolumeOf,
};

/// The configuration file, unless another is named.
const DEFAULT_FILE: &str = "/etc/arenite.toml";
/// Minimum length of a key, in bytes; shorter keys can be guessed.
const GUESSABLE: usize = 16;
/// Creates at once when a cluster's nodes run the sandboxes.
const CLUSTER_CREATES: u32 = 64;
/// Other variables for a setting: AIO's names, and names of earlier releases. A setting's own variable wins.
const OTHER_VARIABLES: [(&str, &str); 4] = [
    ("api_key", "SANDBOX_API_KEY"),
    ("jwt_public_key", "JWT_PUBLIC_KEY"),
    ("ticket_ttl_seconds", "TICKET_TTL_SECONDS"),
    ("prepared_slots", "ARENITE_POOL_SIZE"),
];
/// Settings that are never shown.
const SECRETS: [&str; 2] = ["api_key", "store"];
/// The data directory unless another is named.
pub(crate) const DEFAULT_DATA_DIR: &str = "/var/lib/arenite";

/// Why the configuration was refused.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    #[error("could not read the configuration file {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the configuration file {} is not valid: {reason}", path.display())]
    Syntax { path: PathBuf, reason: String },
    #[error("listening on {address} would let anyone who reaches it use the sandboxes: no authentication is configured")]
    Exposed { address: SocketAddr },
    #[error("{setting} is {given}, and {rule}")]
    Refused { setting: &'static str, given: String, rule: &'static str },
    #[error("{setting}: {source}")]
    Credentials { setting: &'static str, source: AuthError },
    #[error("store: {0}")]
    Store(#[from] AddressError),
    #[error(transparent)]
    AgentFlow(#[from] arenite_synthesis::config::ConfigError),
    #[error("{setting} names {}, which can't be read: {source}", path.display())]
    NoFile { setting: &'static str, path: PathBuf, source: std::io::Error },
    #[error("trajectory_store: {0}")]
    TrajectoryStore(String),
    #[error("bucket: the file {} can't be used: {reason}", file.display())]
    Bucket { file: PathBuf, reason: String },
    #[error("tls_cert and tls_key: {0}")]
    Tls(#[from] TlsError),
}

impl ConfigError {
    pub(crate) fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Read { .. } => format!("--config names the file; without it {DEFAULT_FILE} is read when it exists"),
            Self::Syntax { .. } => "arenite serve --show-config prints every setting with its name and value".to_owned(),
            Self::Exposed { address } => format!(
                "set a key (ARENITE_API_KEY, or api_key in the configuration file), keep tenants (--tenants), or listen on 127.0.0.1:{0} and reach it through an SSH tunnel (ssh -L {0}:127.0.0.1:{0} HOST) or a proxy that authenticates",
                address.port()
            ),
            Self::Credentials { setting: "jwt_public_key", .. } => {
                "write the public key as PEM, in base64: base64 -w0 public.pem".to_owned()
            }
            Self::Credentials { setting: "jwt_jwks", .. } => {
                "the file has the public keys as JSON, {\"keys\": […]}, as the issuer serves them at its jwks_uri".to_owned()
            }
            Self::Credentials { .. } => "make one with: openssl rand -hex 32".to_owned(),
            Self::Store(_) => {
                "without it, or with the value sqlite, the store is control.sqlite in the data directory".to_owned()
            }
            Self::Bucket { .. } => "docs/VOLUMES.md has an example of the file".to_owned(),
            Self::Tls(_) => "both are PEM files: the chain with the server's own certificate first, and its key".to_owned(),
            Self::TrajectoryStore(_) if !cfg!(feature = "object-storage") => {
                "the packages have it; cargo xtask dist builds them, and cargo xtask up leaves it out, since it takes a while to compile"
                    .to_owned()
            }
            Self::TrajectoryStore(_) => {
                "credentials are in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, GOOGLE_SERVICE_ACCOUNT, or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
                    .to_owned()
            }
            Self::Refused { .. } | Self::NoFile { .. } | Self::AgentFlow(_) => return None,
        })
    }
}

/// Declares every setting once: its flag, its variable, its key in the file, and how layers override each other.
macro_rules! settings {
    ($($(#[$meta:meta])* $field:ident: $type:ty,)*) => {
        /// The settings of one layer. An unset one falls through to the next layer.
        #[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub(crate) struct Settings {
            $($(#[$meta])* #[serde(skip_serializing_if = "Option::is_none")] $field: Option<$type>,)*
        }

        impl Settings {
            /// The names of all settings, as in the file and in clap's ids.
            const NAMES: &[&str] = &[$(stringify!($field)),*];

            /// These settings, with unset ones taken from `under`.
            pub(crate) fn over(self, under: Self) -> Self {
                Self { $($field: self.$field.or(under.$field),)* }
            }

            fn is_set(&self, name: &str) -> bool {
                match name {
                    $(stringify!($field) => self.$field.is_some(),)*
                    _ => false,
                }
            }
        }
    };
}

settings! {
    /// Address to listen on, repeatable [default: 127.0.0.1:8080]
    #[arg(long, env = "ARENITE_LISTEN", value_name = "ADDR:PORT", value_delimiter = ',')]
    listen: Vec<SocketAddr>,
    /// Second address, the default of AgentFlow's client; off for none [default: 127.0.0.1:18890]
    #[arg(long, env = "ARENITE_AGENTFLOW_LISTEN", value_name = "ADDR:PORT|off")]
    agentflow_listen: OptionalListen,
    /// PEM file of the server's certificate and its chain: with it, the server uses TLS, except for AgentFlow's address on loopback.
    /// It is read again when it changes
    #[arg(long, env = "ARENITE_TLS_CERT", value_name = "FILE")]
    tls_cert: PathBuf,
    /// PEM file of the certificate's private key
    #[arg(long, env = "ARENITE_TLS_KEY", value_name = "FILE")]
    tls_key: PathBuf,
    /// AgentFlow's configuration file, in JSON; --config accepts it too
    #[arg(long, env = "ARENITE_AGENTFLOW_CONFIG", value_name = "FILE")]
    agentflow_config: PathBuf,
    /// What runs the sandboxes: Linux namespaces, a Docker daemon on this host, or a Kubernetes cluster [default: namespace]
    #[arg(long, env = "ARENITE_ENGINE", value_name = "ENGINE")]
    engine: EngineKind,
    /// The Docker daemon's Unix socket [default: /var/run/docker.sock]
    #[arg(long, env = "ARENITE_DOCKER_SOCKET", value_name = "PATH")]
    docker_socket: PathBuf,
    /// Set-user-id programs in Docker's sandboxes gain nothing: sudo does not work
    #[arg(long, env = "ARENITE_DOCKER_NO_NEW_PRIVILEGES", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    docker_no_new_privileges: bool,
    /// The name of gVisor's runtime in Docker, for the tier gvisor [default: runsc]
    #[arg(long, env = "ARENITE_DOCKER_GVISOR_RUNTIME", value_name = "NAME")]
    docker_gvisor_runtime: String,
    /// File with the cluster's address and credentials [default: the service account of the server's pod, else $KUBECONFIG or
    /// ~/.kube/config]
    #[arg(long, env = "ARENITE_KUBECONFIG", value_name = "FILE")]
    kubeconfig: PathBuf,
    /// The cluster's namespace for sandboxes' pods [default: that of the service account or of the kubeconfig]
    #[arg(long, env = "ARENITE_KUBERNETES_NAMESPACE", value_name = "NAMESPACE")]
    kubernetes_namespace: String,
    /// Name of this server in the labels of its pods: one server has one name [default: arenite]
    #[arg(long, env = "ARENITE_KUBERNETES_NAME", value_name = "NAME")]
    kubernetes_name: String,
    /// Image with this program at /arenite, from which each pod gets it
    #[arg(long, env = "ARENITE_KUBERNETES_GUEST_IMAGE", value_name = "REFERENCE")]
    kubernetes_guest_image: String,
    /// The cluster's image for a name, such as base=registry.example/arenite/base:1; creates of other images need a rule of
    /// image_registry; repeatable
    #[arg(long, env = "ARENITE_KUBERNETES_IMAGE", value_name = "NAME=REFERENCE", value_delimiter = ',')]
    kubernetes_image: Vec<ImageOf>,
    /// Warm pool of kubernetes-sigs/agent-sandbox (a SandboxWarmPool) for an image, such as base=base-pool; arenite serve
    /// --show-warm-pool describes one; repeatable
    #[arg(long, env = "ARENITE_KUBERNETES_WARM_POOL", value_name = "IMAGE=POOL", value_delimiter = ',')]
    kubernetes_warm_pool: Vec<ImageOf>,
    /// YAML file of a pod template for sandboxes' pods, with metadata and spec
    #[arg(long, env = "ARENITE_KUBERNETES_TEMPLATE", value_name = "FILE")]
    kubernetes_template: PathBuf,
    /// PEM file of the private key with which the server proves itself to pods [default: created in the data directory]
    #[arg(long, env = "ARENITE_KUBERNETES_IDENTITY", value_name = "FILE")]
    kubernetes_identity: PathBuf,
    /// The cluster's runtime class for a tier, such as gvisor=runsc; repeatable
    #[arg(long, env = "ARENITE_KUBERNETES_RUNTIME_CLASS", value_name = "TIER=CLASS", value_delimiter = ',')]
    kubernetes_runtime_class: Vec<ClassOf>,
    /// Network policies of the cluster select sandboxes' pods by their label arenite.network
    #[arg(long, env = "ARENITE_KUBERNETES_NETWORK_POLICIES", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    kubernetes_network_policies: bool,
    /// Time that a create waits for a node with room for its pod, in seconds; for clusters that add nodes [default: 0]
    #[arg(long, env = "ARENITE_KUBERNETES_SCHEDULE_WAIT_SECONDS", value_name = "SECONDS")]
    kubernetes_schedule_wait_seconds: u32,
    /// The cluster's StorageClass for volumes of tenants [default: the cluster's default]
    #[arg(long, env = "ARENITE_KUBERNETES_VOLUME_CLASS", value_name = "NAME")]
    kubernetes_volume_class: String,
    /// Access mode of volumes' claims. With ReadWriteOnce, all sandboxes of a volume run on one node [default: ReadWriteOnce]
    #[arg(long, env = "ARENITE_KUBERNETES_VOLUME_ACCESS", value_name = "MODE")]
    kubernetes_volume_access: ClaimAccess,
    /// Directory of images, sandboxes and trajectories [default: /var/lib/arenite]
    #[arg(long, env = "ARENITE_DATA_DIR", value_name = "DIR")]
    data_dir: PathBuf,
    /// Database of sandboxes' names and states: postgres://USER:PASSWORD@HOST/DATABASE, or sqlite for control.sqlite in the data
    /// directory [default: sqlite]. Other users of this host can read flags, so prefer the variable or the file
    #[arg(long, env = "ARENITE_STORE", hide_env_values = true, value_name = "URL|sqlite")]
    store: Secret,
    /// Image of sandboxes created without one [default: base]
    #[arg(long, env = "ARENITE_DEFAULT_IMAGE", value_name = "IMAGE")]
    default_image: ImageName,
    /// Number of prepared slots for fast creates: each has a namespace, cgroup, and disk ready [default: 8]
    #[arg(long, alias = "pool-size", env = "ARENITE_PREPARED_SLOTS", value_name = "N")]
    #[serde(alias = "pool_size")]
    prepared_slots: u32,
    /// Sandboxes of a template or image to create in advance, with a started kernel if the image has one; repeatable
    #[arg(long, env = "ARENITE_POOL", value_name = "NAME=N", value_delimiter = ',')]
    pool: Vec<PoolOf>,
    /// Maximum size of the storage pool [default: 80 % of the free space, at most 256GiB]
    #[arg(long, env = "ARENITE_STORAGE_SIZE", value_name = "SIZE")]
    storage_size: Size,
    /// A /16 range for the sandboxes' addresses [default: the first free one of 10.209.0.0/16 to 10.240.0.0/16]
    #[arg(long, env = "ARENITE_SUBNET", value_name = "RANGE")]
    subnet: AddressRange,
    /// Address ranges closed to sandboxes, in addition to metadata addresses, private ranges and the host
    #[arg(long, env = "ARENITE_DENY", value_name = "RANGE", value_delimiter = ',')]
    deny: Vec<AddressRange>,
    /// Address ranges open to sandboxes although closed by default
    #[arg(long, env = "ARENITE_ALLOW", value_name = "RANGE", value_delimiter = ',')]
    allow: Vec<AddressRange>,
    /// DNS resolvers for sandboxes [default: those of /etc/resolv.conf]
    #[arg(long, env = "ARENITE_RESOLVER", value_name = "IP[:PORT]", value_delimiter = ',')]
    resolver: Vec<Resolver>,
    /// Host directory that sandboxes may mount by this name, :ro for read-only; repeatable
    #[arg(long, env = "ARENITE_VOLUME", value_name = "NAME=DIR[:ro]", value_delimiter = ',')]
    volume: Vec<VolumeOf>,
    /// Bucket for volumes, and the file with its address and credentials, such as shared=/etc/arenite/shared.toml; repeatable
    #[arg(long, env = "ARENITE_BUCKET", value_name = "NAME=FILE", value_delimiter = ',')]
    bucket: Vec<BucketOf>,
    /// Program that mounts buckets [default: rclone in PATH]
    #[arg(long, env = "ARENITE_RCLONE", value_name = "FILE")]
    rclone: PathBuf,
    /// TCP port of the host's 127.0.0.1 that sandboxes reach at host.docker.internal; repeatable
    #[arg(long, env = "ARENITE_HOST_PORT", value_name = "PORT", value_delimiter = ',')]
    host_port: Vec<u16>,
    /// PEM file of additional certificate authorities that sandboxes trust, for networks that intercept TLS
    #[arg(long, env = "ARENITE_EXTRA_CA", value_name = "FILE")]
    extra_ca: PathBuf,
    /// What isolates sandboxes of images without a VM, unless their create says it: namespace or gvisor [default: namespace]
    #[arg(long, env = "ARENITE_TIER", value_name = "TIER")]
    tier: Tier,
    /// gVisor's program, for the tier gvisor [default: runsc in PATH]
    #[arg(long, env = "ARENITE_RUNSC", value_name = "FILE")]
    runsc: PathBuf,
    /// The tier that each sandbox of a tenant without a separate minimum must have: namespace, gvisor or machine [default: namespace]
    #[arg(long, env = "ARENITE_TENANT_MIN_TIER", value_name = "TIER")]
    tenant_min_tier: Tier,
    /// Maximum number of sandboxes [default: 20000]
    #[arg(long, env = "ARENITE_MAX_SANDBOXES", value_name = "N")]
    max_sandboxes: u32,
    /// Maximum number of concurrent creates [default: 2 per core, from 4 to 64; 64 with the engine kubernetes]
    #[arg(long, env = "ARENITE_MAX_CONCURRENT_CREATES", value_name = "N")]
    max_concurrent_creates: u32,
    /// Maximum number of waiting creates; further ones get 429 [default: 256]
    #[arg(long, env = "ARENITE_CREATE_QUEUE", value_name = "N")]
    create_queue: u32,
    /// Host memory that creates leave free [default: 512MiB]
    #[arg(long, env = "ARENITE_MEMORY_RESERVE", value_name = "SIZE")]
    memory_reserve: Size,
    /// Disk space that creates leave free [default: 1GiB]
    #[arg(long, env = "ARENITE_DISK_RESERVE", value_name = "SIZE")]
    disk_reserve: Size,
    /// When a create pulls its image: missing, if it is not here and image_registry permits it, or never [default: missing]
    #[arg(long, env = "ARENITE_IMAGE_PULL", value_name = "missing|never")]
    image_pull: ImagePull,
    /// Registry that creates and the API may pull from, with or without a path; * for all on the public internet; for one tenant
    /// with TENANT= before it; repeatable [default: none]
    #[arg(long, env = "ARENITE_IMAGE_REGISTRY", value_name = "[TENANT=]HOST[/PATH]", value_delimiter = ',')]
    image_registry: Vec<ImageRegistry>,
    /// Place that is asked first for the images of a registry, such as docker.io=mirror.example:5000/hub; repeatable
    #[arg(long, env = "ARENITE_IMAGE_MIRROR", value_name = "HOST[/PATH]=HOST[/PATH]", value_delimiter = ',')]
    image_mirror: Vec<ImageMirror>,
    /// Registry that may answer without TLS, as those on loopback may; repeatable
    #[arg(long, env = "ARENITE_IMAGE_INSECURE_REGISTRY", value_name = "HOST[:PORT]", value_delimiter = ',')]
    image_insecure_registry: Vec<String>,
    /// Maximum time that a create waits for its image, in seconds [default: 600]
    #[arg(long, env = "ARENITE_IMAGE_PULL_WAIT_SECONDS", value_name = "SECONDS")]
    image_pull_wait_seconds: u32,
    /// Remove pulled images that nothing used for this many days; 0 keeps them [default: 0]
    #[arg(long, env = "ARENITE_IMAGE_KEEP_DAYS", value_name = "DAYS")]
    image_keep_days: u32,
    /// Directory of templates, one file per template
    #[arg(long, env = "ARENITE_TEMPLATES_DIR", value_name = "DIR")]
    templates_dir: PathBuf,
    /// File of Agent-Sandbox's environments: a JSON array of {name, image, description}
    #[arg(long, env = "ARENITE_ENVIRONMENTS_FILE", value_name = "FILE")]
    environments_file: PathBuf,
    /// Always answer Agent-Sandbox's routes with status 200, as the original does
    #[arg(long, env = "ARENITE_AGENT_SANDBOX_ALWAYS_200", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    agent_sandbox_always_200: bool,
    /// Version of Agent-Sandbox's API for clients without the header x-agent-sandbox-version [default: 0.1]
    #[arg(long, env = "ARENITE_AGENT_SANDBOX_VERSION", value_name = "VERSION")]
    agent_sandbox_version: AgentSandboxVersion,
    /// Host names that clients may use, in addition to localhost and addresses
    #[arg(long, env = "ARENITE_ALLOWED_HOST", value_name = "NAME", value_delimiter = ',')]
    allowed_host: Vec<String>,
    /// Other origins with pages that may call every route, such as https://ui.example.com
    #[arg(long, env = "ARENITE_ALLOWED_ORIGIN", value_name = "ORIGIN", value_delimiter = ',')]
    allowed_origin: Vec<String>,
    /// Key that callers must send; without it and jwt_public_key, there is no authentication. Other users of this host can read
    /// flags, so prefer the variable or the file
    #[arg(long, env = "ARENITE_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Secret,
    /// Public RSA key for callers' tokens (JWT, RS256): its PEM file in base64
    #[arg(long, env = "ARENITE_JWT_PUBLIC_KEY", value_name = "BASE64")]
    jwt_public_key: String,
    /// Issuer of the tokens (JWT) of tenants' users, as in their claim iss; needs jwt_audience, jwt_jwks and tenants
    #[arg(long, env = "ARENITE_JWT_ISSUER", value_name = "ISSUER")]
    jwt_issuer: String,
    /// Audience of the tokens of tenants' users, as in their claim aud
    #[arg(long, env = "ARENITE_JWT_AUDIENCE", value_name = "AUDIENCE")]
    jwt_audience: String,
    /// File with the public keys of the issuer (JWKS; RS256, ES256 or EdDSA). It is read again when it changes
    #[arg(long, env = "ARENITE_JWT_JWKS", value_name = "FILE")]
    jwt_jwks: PathBuf,
    /// Claim with the name of the user's tenant [default: tenant]
    #[arg(long, env = "ARENITE_JWT_TENANT_CLAIM", value_name = "CLAIM")]
    jwt_tenant_claim: String,
    /// Claim with the user's role (read, use, manage or admin), or with a list of roles [default: role]
    #[arg(long, env = "ARENITE_JWT_ROLE_CLAIM", value_name = "CLAIM")]
    jwt_role_claim: String,
    /// Keep tenants, each with its own keys, sandboxes and trajectories; the first start prints an operator's key
    #[arg(long, env = "ARENITE_TENANTS", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    tenants: bool,
    /// Address ranges that webhooks may reach besides the public internet
    #[arg(long, env = "ARENITE_WEBHOOK_ALLOW", value_name = "RANGE", value_delimiter = ',')]
    webhook_allow: Vec<AddressRange>,
    /// Address ranges that model routes may reach besides the public internet
    #[arg(long, env = "ARENITE_MODEL_ALLOW", value_name = "RANGE", value_delimiter = ',')]
    model_allow: Vec<AddressRange>,
    /// Time for which failed deliveries to webhooks are retried, in seconds [default: 86400]
    #[arg(long, env = "ARENITE_WEBHOOK_RETRY_SECONDS", value_name = "SECONDS")]
    webhook_retry_seconds: u32,
    /// File with the keys that tenants' secrets are encrypted with: one of 32 bytes in base64 on each line, of which the first encrypts
    /// [default: secrets.key in the data directory, created with the first secret; required in a cluster]
    #[arg(long, env = "ARENITE_SECRET_KEY_FILE", value_name = "FILE")]
    secret_key_file: PathBuf,
    /// Command that prints these keys, instead of a file
    #[arg(long, env = "ARENITE_SECRET_KEY_COMMAND", value_name = "COMMAND")]
    secret_key_command: String,
    /// Limit of each tenant without a separate one: sandboxes, creates (concurrent ones), cpu (cores), memory, disk, trajectories
    /// (their logs), requests (a second) or timeout (the longest lifetime); repeatable [default: none]
    #[arg(long, env = "ARENITE_TENANT_LIMIT", value_name = "NAME=VALUE", value_delimiter = ',')]
    tenant_limit: Vec<LimitOf>,
    /// Lifetime of a ticket, in seconds [default: 30]
    #[arg(long, env = "ARENITE_TICKET_TTL_SECONDS", value_name = "SECONDS")]
    ticket_ttl_seconds: u32,
    /// URL of a collector for traces (OpenTelemetry: OTLP over HTTP, JSON), such as http://127.0.0.1:4318
    #[arg(long, env = "ARENITE_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: String,
    /// Share of requests to trace, from 0 to 1, unless their traceparent says it [default: 1]
    #[arg(long, env = "ARENITE_OTLP_SAMPLE", value_name = "SHARE")]
    otlp_sample: f64,
    /// Domain, besides localhost, under which each sandbox has a host ({id}.DOMAIN), and each of its ports ({port}-{id}.DOMAIN)
    #[arg(long, env = "ARENITE_DOMAIN", value_name = "DOMAIN")]
    domain: String,
    /// Share a Postgres store with other servers, as this node of a cluster. Each node owns sandboxes, and passes calls for
    /// those of others on
    #[arg(long, env = "ARENITE_NODE", value_name = "NAME")]
    node: NodeName,
    /// Address on which a node listens for the others; only nodes can connect to it [default: 127.0.0.1:8902]
    #[arg(long, env = "ARENITE_NODE_LISTEN", value_name = "ADDR")]
    node_listen: SocketAddr,
    /// Host and port by which the other nodes reach it [default: the address on which it listens for them]
    #[arg(long, env = "ARENITE_NODE_ADDRESS", value_name = "HOST:PORT")]
    node_address: String,
    /// Label of this node, by which creates can select it (node_selector); repeatable
    #[arg(long, env = "ARENITE_NODE_LABEL", value_name = "KEY=VALUE", value_delimiter = ',')]
    node_label: Vec<NodeLabel>,
    /// Object storage to which trajectories are copied when they end: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX
    /// or file:///DIRECTORY. Credentials are in the environment [default: none]
    #[arg(long, env = "ARENITE_TRAJECTORY_STORE", value_name = "URL")]
    trajectory_store: String,
    /// Remove a trajectory here this many days after its last step, once it is in object storage [default: never]
    #[arg(long, env = "ARENITE_TRAJECTORY_LOCAL_DAYS", value_name = "DAYS")]
    trajectory_local_days: u32,
    /// Proxies to trust X-Forwarded headers from
    #[arg(long, env = "ARENITE_TRUSTED_PROXY", value_name = "IP", value_delimiter = ',')]
    trusted_proxy: Vec<IpAddr>,
    /// Delete all sandboxes at a graceful stop; otherwise they keep running and are re-adopted
    #[arg(long, env = "ARENITE_REMOVE_SANDBOXES", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    remove_sandboxes: bool,
    /// Log filter: a level, or one per module, such as info,arenite_engine=debug [default: info]
    #[arg(long, env = "ARENITE_LOG", value_name = "FILTER")]
    log: String,
    /// Format of log lines [default: text]
    #[arg(long, env = "ARENITE_LOG_FORMAT", value_name = "FORMAT")]
    log_format: LogFormat,
}

impl Settings {
    /// gVisor's program as the variable or the default file sets it, for commands without these settings.
    pub(crate) fn runsc_here() -> Option<PathBuf> {
        let variable = std::env::var_os("ARENITE_RUNSC").filter(|path| !path.is_empty()).map(PathBuf::from);
        variable.or_else(|| Self::of_file(None).ok()?.0.runsc)
    }

    /// The same for the program that mounts buckets.
    pub(crate) fn rclone_here() -> Option<PathBuf> {
        let variable = std::env::var_os("ARENITE_RCLONE").filter(|path| !path.is_empty()).map(PathBuf::from);
        variable.or_else(|| Self::of_file(None).ok()?.0.rclone)
    }
}

/// The complete configuration of a server.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) agentflow_listen: OptionalListen,
    /// None: without TLS.
    pub(crate) tls: Option<Arc<Certificates>>,
    pub(crate) engine: EngineKind,
    pub(crate) docker_socket: PathBuf,
    pub(crate) docker_no_new_privileges: bool,
    pub(crate) docker_gvisor_runtime: String,
    /// None: another engine.
    pub(crate) kubernetes: Option<KubernetesConfig>,
    pub(crate) data_dir: PathBuf,
    /// None: SQLite in the data directory.
    pub(crate) database: Option<PostgresAddress>,
    pub(crate) default_image: ImageName,
    pub(crate) prepared_slots: u32,
    pub(crate) pool: Vec<PoolOf>,
    /// None: the engine's default.
    pub(crate) storage_size: Option<Size>,
    /// None: the engine's first free range.
    pub(crate) subnet: Option<AddressRange>,
    pub(crate) deny: Vec<AddressRange>,
    pub(crate) allow: Vec<AddressRange>,
    /// Empty: those of the host.
    pub(crate) resolver: Vec<Resolver>,
    pub(crate) volume: Vec<VolumeOf>,
    pub(crate) bucket: Vec<BucketOf>,
    /// None: the one in PATH, if any.
    pub(crate) rclone: Option<PathBuf>,
    pub(crate) host_port: Vec<u16>,
    pub(crate) extra_ca: Option<PathBuf>,
    pub(crate) tier: Tier,
    /// None: the one in PATH, if any.
    pub(crate) runsc: Option<PathBuf>,
    pub(crate) tenant_min_tier: Tier,
    pub(crate) max_sandboxes: u32,
    pub(crate) max_concurrent_creates: u32,
    pub(crate) create_queue: u32,
    pub(crate) memory_reserve: Size,
    pub(crate) disk_reserve: Size,
    pub(crate) image_pull: ImagePull,
    pub(crate) image_registry: Vec<ImageRegistry>,
    pub(crate) image_mirror: Vec<ImageMirror>,
    pub(crate) image_insecure_registry: Vec<String>,
    pub(crate) image_pull_wait_seconds: u32,
    pub(crate) image_keep_days: u32,
    pub(crate) templates_dir: Option<PathBuf>,
    pub(crate) environments_file: Option<PathBuf>,
    pub(crate) agent_sandbox_always_200: bool,
    pub(crate) agent_sandbox_version: AgentSandboxVersion,
    pub(crate) allowed_host: Vec<String>,
    pub(crate) allowed_origin: Vec<String>,
    pub(crate) auth: Authentication,
    pub(crate) tenants: bool,
    /// None: requests are not traced.
    pub(crate) traces: Option<TraceConfig>,
    pub(crate) webhook_allow: Vec<AddressRange>,
    pub(crate) model_allow: Vec<AddressRange>,
    pub(crate) webhook_retry_seconds: u32,
    pub(crate) secret_keys: SecretKeySource,
    pub(crate) tenant_limit: Vec<LimitOf>,
    /// The key is short enough to guess.
    pub(crate) has_weak_key: bool,
    pub(crate) domain: Option<String>,
    pub(crate) node: Option<NodeName>,
    pub(crate) node_listen: SocketAddr,
    pub(crate) node_address: Option<String>,
    pub(crate) node_label: Vec<NodeLabel>,
    /// None: trajectories stay here.
    pub(crate) trajectory_store: Option<TrajectoryStore>,
    /// None: for ever.
    pub(crate) trajectory_local_days: Option<u32>,
    pub(crate) trusted_proxy: Vec<IpAddr>,
    pub(crate) remove_sandboxes: bool,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
}

impl Settings {
    /// Overrides the addresses to listen on.
    pub(crate) fn listen_on(&mut self, addresses: Vec<SocketAddr>) {
        self.listen = Some(addresses);
    }

    /// Fills in the defaults.
    fn or_defaults(self) -> Self {
        let mut defaults = Self::defaults();
        if self.engine == Some(EngineKind::Kubernetes) {
            // The nodes of the cluster do the work.
            defaults.max_concurrent_creates = Some(CLUSTER_CREATES);
        }
        self.over(defaults)
    }

    /// The default settings of a server on one host.
    fn defaults() -> Self {
        let limits = arenite_control::Limits::default();
        let count = |n: usize| Some(u32::try_from(n).unwrap_or(u32::MAX));
        Self {
            listen: Some(vec![SocketAddr::from(([127, 0, 0, 1], 8080))]),
            tls_cert: None,
            tls_key: None,
            agentflow_config: None,
            agentflow_listen: Some(OptionalListen::At(SocketAddr::from(([127, 0, 0, 1], 18890)))),
            engine: Some(EngineKind::Namespace),
            docker_socket: Some(DEFAULT_SOCKET.into()),
            docker_no_new_privileges: Some(false),
            docker_gvisor_runtime: Some(DEFAULT_GVISOR_RUNTIME.to_owned()),
            kubeconfig: None,
            kubernetes_namespace: None,
            kubernetes_name: Some("arenite".to_owned()),
            kubernetes_guest_image: None,
            kubernetes_image: Some(Vec::new()),
            kubernetes_warm_pool: Some(Vec::new()),
            kubernetes_template: None,
            kubernetes_identity: None,
            kubernetes_runtime_class: Some(Vec::new()),
            kubernetes_network_policies: Some(false),
            kubernetes_schedule_wait_seconds: Some(0),
            kubernetes_volume_class: None,
            kubernetes_volume_access: Some(ClaimAccess::ReadWriteOnce),
            data_dir: Some(DEFAULT_DATA_DIR.into()),
            store: None,
            default_image: Some("base".parse().expect("the default image's name is valid")),
            prepared_slots: Some(8),
            pool: Some(Vec::new()),
            storage_size: None,
            subnet: None,
            deny: Some(Vec::new()),
            allow: Some(Vec::new()),
            resolver: Some(Vec::new()),
            volume: Some(Vec::new()),
            bucket: Some(Vec::new()),
            rclone: None,
            host_port: Some(Vec::new()),
            extra_ca: None,
            tier: Some(Tier::Namespace),
            runsc: None,
            tenant_min_tier: Some(Tier::Namespace),
            max_sandboxes: count(limits.max_sandboxes),
            max_concurrent_creates: count(limits.max_concurrent_creates),
            create_queue: count(limits.create_queue),
            memory_reserve: Some(Size(limits.memory_reserve_bytes)),
            disk_reserve: Some(Size(limits.disk_reserve_bytes)),
            image_pull: Some(ImagePull(PullMode::Missing)),
            image_registry: Some(Vec::new()),
            image_mirror: Some(Vec::new()),
            image_insecure_registry: Some(Vec::new()),
            image_pull_wait_seconds: Some(600),
            image_keep_days: Some(0),
            templates_dir: None,
            environments_file: None,
            agent_sandbox_always_200: Some(false),
            agent_sandbox_version: Some(AgentSandboxVersion::First),
            allowed_host: Some(Vec::new()),
            allowed_origin: Some(Vec::new()),
            api_key: None,
            jwt_public_key: None,
            jwt_issuer: None,
            jwt_audience: None,
            jwt_jwks: None,
            jwt_tenant_claim: Some("tenant".to_owned()),
            jwt_role_claim: Some("role".to_owned()),
            tenants: Some(false),
            otlp_endpoint: None,
            otlp_sample: Some(1.0),
            webhook_allow: Some(Vec::new()),
            model_allow: Some(Vec::new()),
            webhook_retry_seconds: Some(86_400),
            secret_key_file: None,
            secret_key_command: None,
            tenant_limit: Some(Vec::new()),
            ticket_ttl_seconds: Some(u32::try_from(arenite_gateway::TICKET_TTL.as_secs()).expect("the default is short")),
            domain: None,
            node: None,
            node_listen: Some(SocketAddr::from(([127, 0, 0, 1], 8902))),
            node_address: None,
            node_label: Some(Vec::new()),
            trajectory_store: None,
            trajectory_local_days: None,
            trusted_proxy: Some(Vec::new()),
            remove_sandboxes: Some(false),
            log: Some("info".to_owned()),
            log_format: Some(LogFormat::Text),
        }
    }

    /// Reads a configuration file; returns its settings and path. `named` is the value of `--config`; without it, the default
    /// file is read if it exists.
    pub(crate) fn of_file(named: Option<&Path>) -> Result<(Self, Option<PathBuf>), ConfigError> {
        let path = named.unwrap_or(Path::new(DEFAULT_FILE)).to_owned();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => return Ok((Self::default(), None)),
            Err(source) => return Err(ConfigError::Read { path, source }),
        };
        if text.trim_start().starts_with('{') {
            return Ok((Self { agentflow_config: Some(path.clone()), ..Self::default() }, Some(path)));
        }
        match toml::from_str(&text) {
            Ok(settings) => Ok((settings, Some(path))),
            Err(error) => Err(ConfigError::Syntax { path, reason: error.to_string().trim_end().to_owned() }),
        }
    }

    /// AgentFlow's configuration, if these settings or those name one.
    pub(crate) fn agentflow(&self, file: &Self) -> Result<Option<arenite_synthesis::config::Config>, ConfigError> {
        let path = self.agentflow_config.as_ref().or(file.agentflow_config.as_ref());
        Ok(path.map(|path| arenite_synthesis::config::Config::read(path)).transpose()?)
    }

    /// The server's settings in AgentFlow's configuration.
    pub(crate) fn of_agentflow(config: &arenite_synthesis::config::Config) -> Result<Self, ConfigError> {
        let address = |(host, port): (String, u16)| {
            let host = if host == "localhost" { "127.0.0.1" } else { host.trim_matches(['[', ']']) };
            let refused = |_| ConfigError::Refused {
                setting: "server.url or server.host",
                given: host.to_owned(),
                rule: "it is an IP address to listen on, or localhost",
            };
            Ok::<_, ConfigError>(SocketAddr::new(host.parse().map_err(refused)?, port))
        };
        let security = &config.security;
        let origins: Vec<String> = security.allowed_origins.iter().filter(|origin| *origin != "*").cloned().collect();
        let key = security.auth.api_key.clone().filter(|key| security.auth.enabled && !key.is_empty());
        Ok(Self {
            listen: config.listen().map(address).transpose()?.map(|address| vec![address]),
            allowed_origin: (!origins.is_empty()).then_some(origins),
            api_key: key.map(Secret),
            ..Self::default()
        })
    }

    /// Reads [`OTHER_VARIABLES`]. An empty variable counts as unset.
    pub(crate) fn from_other_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let of = |setting: &str| {
            let name = OTHER_VARIABLES.iter().find(|(of, _)| *of == setting).map(|(_, name)| *name)?;
            variable(name).filter(|value| !value.is_empty())
        };
        let seconds = of("ticket_ttl_seconds").map(|given| {
            let rule = "it is a number of seconds";
            given.trim().parse().map_err(|_| ConfigError::Refused { setting: "TICKET_TTL_SECONDS", given, rule })
        });
        let slots = of("prepared_slots").map(|given| {
            let rule = "it is a number";
            given.trim().parse().map_err(|_| ConfigError::Refused { setting: "ARENITE_POOL_SIZE", given, rule })
        });
        Ok(Self {
            prepared_slots: slots.transpose()?,
            api_key: of("api_key").map(Secret),
            jwt_public_key: of("jwt_public_key"),
            ticket_ttl_seconds: seconds.transpose()?,
            ..Self::default()
        })
    }

    /// Settings of commands that open the store without a server.
    pub(crate) fn of_store(data_dir: Option<PathBuf>, store: Option<Secret>) -> Self {
        Self { data_dir, store, ..Self::default() }
    }

    /// The data directory, and the database of the store unless it is SQLite.
    pub(crate) fn resolve_store(&self) -> Result<(PathBuf, Option<PostgresAddress>), ConfigError> {
        let data_dir = absolute(self.data_dir.clone().unwrap_or_else(|| DEFAULT_DATA_DIR.into()));
        let store = self.store.as_ref().filter(|store| store.0 != "sqlite");
        Ok((data_dir, store.map(|store| store.0.parse()).transpose()?))
    }

    /// Fills in the defaults and refuses invalid values.
    pub(crate) fn resolve(self) -> Result<Config, ConfigError> {
        let all = self.or_defaults();
        let (data_dir, database) = all.resolve_store()?;
        if let Some(node) = all.node.as_ref().filter(|_| database.is_none()) {
            let rule = "nodes share a Postgres store: --store postgres://USER:PASSWORD@HOST/DATABASE";
            return Err(ConfigError::Refused { setting: "node", given: node.to_string(), rule });
        }
        let complete = "every required setting has a default";
        let kubernetes = all.kubernetes(&data_dir)?;
        let seconds = all.ticket_ttl_seconds.expect(complete);
        if !(1..=86_400).contains(&seconds) {
            let rule = "it is from 1 to 86400";
            return Err(ConfigError::Refused { setting: "ticket_ttl_seconds", given: seconds.to_string(), rule });
        }
        let api_key = all.api_key.as_ref().map(|key| key.0.as_str());
        let ttl = Duration::from_secs(seconds.into());
        let auth = Authentication::new(api_key, all.jwt_public_key.as_deref(), ttl).map_err(|source| {
            let setting = if matches!(source, AuthError::TokenKey(_)) { "jwt_public_key" } else { "api_key" };
            ConfigError::Credentials { setting, source }
        })?;
        let tenants = all.tenants.expect(complete);
        if tenants && all.jwt_public_key.is_some() {
            let rule = "tokens name no tenant, so they can't be used with tenants";
            return Err(ConfigError::Refused { setting: "jwt_public_key", given: "set".to_owned(), rule });
        }
        let auth = match (all.jwt_issuer, all.jwt_audience, all.jwt_jwks.map(absolute)) {
            (None, None, None) => auth,
            (Some(issuer), Some(audience), Some(jwks)) if tenants => {
                let (tenant_claim, role_claim) = (all.jwt_tenant_claim.expect(complete), all.jwt_role_claim.expect(complete));
                let rules = TokenRules { issuer, audience, jwks, tenant_claim, role_claim };
                auth.with_users(rules).map_err(|source| ConfigError::Credentials { setting: "jwt_jwks", source })?
            }
            (issuer, audience, jwks) => {
                let given =
                    [("jwt_issuer", issuer.is_some()), ("jwt_audience", audience.is_some()), ("jwt_jwks", jwks.is_some())];
                let setting = given.iter().find(|(_, is_set)| *is_set).map_or("jwt_jwks", |(setting, _)| setting);
                let rule = "jwt_issuer, jwt_audience and jwt_jwks are set together, with tenants";
                return Err(ConfigError::Refused { setting, given: "set".to_owned(), rule });
            }
        };
        let secret_keys = match (all.secret_key_file.map(absolute), all.secret_key_command) {
            (None, None) => SecretKeySource::DataDir,
            (Some(file), None) => SecretKeySource::File(file),
            (None, Some(command)) => SecretKeySource::Command(command),
            (Some(_), Some(given)) => {
                let rule = "give either secret_key_file or secret_key_command";
                return Err(ConfigError::Refused { setting: "secret_key_command", given, rule });
            }
        };
        let tls = match (all.tls_cert.map(absolute), all.tls_key.map(absolute)) {
            (Some(cert), Some(key)) => Some(Arc::new(Certificates::open(cert, key)?)),
            (Some(cert), None) => {
                let rule = "tls_key has to be set, too";
                return Err(ConfigError::Refused { setting: "tls_cert", given: cert.display().to_string(), rule });
            }
            (None, Some(key)) => {
                let rule = "tls_cert has to be set, too";
                return Err(ConfigError::Refused { setting: "tls_key", given: key.display().to_string(), rule });
            }
            (None, None) => None,
        };
        let sample = all.otlp_sample.expect(complete);
        if !(0.0..=1.0).contains(&sample) {
            let rule = "it is from 0 to 1";
            return Err(ConfigError::Refused { setting: "otlp_sample", given: sample.to_string(), rule });
        }
        let traces = match all.otlp_endpoint {
            Some(given) => match TraceConfig::new(&given, sample) {
                Ok(traces) => Some(traces),
                Err(rule) => return Err(ConfigError::Refused { setting: "otlp_endpoint", given, rule }),
            },
            None => None,
        };
        let engine = all.engine.expect(complete);
        if engine == EngineKind::Docker {
            // Refused, since it would have no effect.
            let of_namespaces = [
                ("extra_ca", all.extra_ca.as_ref().map(|file| file.display().to_string())),
                ("runsc", all.runsc.as_ref().map(|file| file.display().to_string())),
                ("pool", all.pool.as_ref().and_then(|pools| pools.first()).map(|pool| pool.to_string())),
                ("bucket", all.bucket.as_ref().and_then(|buckets| buckets.first()).map(|bucket| bucket.to_string())),
            ];
            if let Some((setting, Some(given))) = of_namespaces.into_iter().find(|(_, given)| given.is_some()) {
                return Err(ConfigError::Refused { setting, given, rule: "the engine docker does not have it" });
            }
        }
        let trajectory_store = match all.trajectory_store {
            Some(given) => Some(TrajectoryStore::parse(&given).map_err(ConfigError::TrajectoryStore)?),
            None => None,
        };
        if let (None, Some(days)) = (&trajectory_store, all.trajectory_local_days) {
            let rule = "trajectory_store has to be set, too: nothing else would have them";
            return Err(ConfigError::Refused { setting: "trajectory_local_days", given: days.to_string(), rule });
        }
        let config = Config {
            listen: all.listen.expect(complete),
            agentflow_listen: all.agentflow_listen.expect(complete),
            tls,
            engine,
            docker_socket: absolute(all.docker_socket.expect(complete)),
            docker_no_new_privileges: all.docker_no_new_privileges.expect(complete),
            docker_gvisor_runtime: all.docker_gvisor_runtime.expect(complete),
            kubernetes,
            data_dir,
            database,
            default_image: all.default_image.expect(complete),
            prepared_slots: all.prepared_slots.expect(complete),
            pool: all.pool.expect(complete),
            storage_size: all.storage_size,
            subnet: all.subnet,
            deny: all.deny.expect(complete),
            allow: all.allow.expect(complete),
            resolver: all.resolver.expect(complete),
            volume: all.volume.expect(complete),
            bucket: all.bucket.expect(complete).into_iter().map(|bucket| bucket.with_file(absolute)).collect(),
            rclone: all.rclone.map(absolute),
            host_port: all.host_port.expect(complete),
            extra_ca: all.extra_ca.map(absolute),
            tier: all.tier.expect(complete),
            runsc: all.runsc.map(absolute),
            tenant_min_tier: all.tenant_min_tier.expect(complete),
            max_sandboxes: all.max_sandboxes.expect(complete),
            max_concurrent_creates: all.max_concurrent_creates.expect(complete),
            create_queue: all.create_queue.expect(complete),
            memory_reserve: all.memory_reserve.expect(complete),
            disk_reserve: all.disk_reserve.expect(complete),
            image_pull: all.image_pull.expect(complete),
            image_registry: all.image_registry.expect(complete),
            image_mirror: all.image_mirror.expect(complete),
            image_insecure_registry: all.image_insecure_registry.expect(complete),
            image_pull_wait_seconds: all.image_pull_wait_seconds.expect(complete),
            image_keep_days: all.image_keep_days.expect(complete),
            templates_dir: all.templates_dir.map(absolute),
            environments_file: all.environments_file.map(absolute),
            agent_sandbox_always_200: all.agent_sandbox_always_200.expect(complete),
            agent_sandbox_version: all.agent_sandbox_version.expect(complete),
            allowed_host: all.allowed_host.expect(complete),
            allowed_origin: all.allowed_origin.expect(complete),
            has_weak_key: api_key.is_some_and(|key| key.len() < GUESSABLE),
            auth,
            tenants,
            traces,
            webhook_allow: all.webhook_allow.expect(complete),
            model_allow: all.model_allow.expect(complete),
            webhook_retry_seconds: all.webhook_retry_seconds.expect(complete),
            secret_keys,
            tenant_limit: all.tenant_limit.expect(complete),
            domain: all.domain,
            node: all.node,
            node_listen: all.node_listen.expect(complete),
            node_address: all.node_address,
            node_label: all.node_label.expect(complete),
            trajectory_store,
            trajectory_local_days: all.trajectory_local_days,
            trusted_proxy: all.trusted_proxy.expect(complete),
            remove_sandboxes: all.remove_sandboxes.expect(complete),
            log: all.log.expect(complete),
            log_format: all.log_format.expect(complete),
        };
        config.check()?;
        Ok(config)
    }
}

/// Makes a path absolute, so that the server's working directory does not matter later.
fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

impl Config {
    /// AgentFlow's address if it never uses TLS: its clients have an http:// URL by default.
    pub(crate) fn plain_listen(&self) -> Option<SocketAddr> {
        match self.agentflow_listen {
            OptionalListen::At(address) if address.ip().to_canonical().is_loopback() => Some(address),
            _ => None,
        }
    }

    /// The scheme of one of the server's addresses.
    pub(crate) fn scheme(&self, address: SocketAddr) -> &'static str {
        if self.tls.is_some() && self.plain_listen() != Some(address) { "https" } else { "http" }
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.listen.is_empty() {
            let rule = "at least one address is needed";
            return Err(ConfigError::Refused { setting: "listen", given: "empty".to_owned(), rule });
        }
        let agentflow = match self.agentflow_listen {
            OptionalListen::At(address) => Some(address),
            OptionalListen::Off => None,
        };
        // Anyone who reaches the port can use the sandboxes, unless callers have to authenticate.
        let mut all = self.listen.iter().copied().chain(agentflow);
        let needs_credentials = self.auth.is_required() || self.tenants;
        if let Some(address) = all.find(|a| !a.ip().to_canonical().is_loopback() && !needs_credentials) {
            return Err(ConfigError::Exposed { address });
        }
        let numbers = [
            ("prepared_slots", self.prepared_slots, 0, 256, "it is from 0 to 256"),
            ("max_sandboxes", self.max_sandboxes, 1, 100_000, "it is from 1 to 100000"),
            ("max_concurrent_creates", self.max_concurrent_creates, 1, 256, "it is from 1 to 256"),
            ("create_queue", self.create_queue, 0, 100_000, "it is from 0 to 100000"),
            ("image_pull_wait_seconds", self.image_pull_wait_seconds, 1, 86_400, "it is from 1 to 86400, which is a day"),
            ("image_keep_days", self.image_keep_days, 0, 3650, "it is from 0 to 3650, which are ten years"),
            ("webhook_retry_seconds", self.webhook_retry_seconds, 0, 2_592_000, "it is from 0 to 2592000, which is 30 days"),
        ];
        for (setting, value, least, most, rule) in numbers {
            if !(least..=most).contains(&value) {
                return Err(ConfigError::Refused { setting, given: value.to_string(), rule });
            }
        }
        let pooled: u64 = self.pool.iter().map(|pool| u64::from(pool.number)).sum();
        if pooled > 256 {
            let rule = "its numbers add up to 256 at most";
            return Err(ConfigError::Refused { setting: "pool", given: pooled.to_string(), rule });
        }
        for (number, volume) in self.volume.iter().enumerate() {
            if self.volume[..number].iter().any(|other| other.name == volume.name) {
                let rule = "each name is declared once";
                return Err(ConfigError::Refused { setting: "volume", given: volume.to_string(), rule });
            }
        }
        for (number, bucket) in self.bucket.iter().enumerate() {
            if self.bucket[..number].iter().any(|other| other.name == bucket.name) {
                let rule = "each name is declared once";
                return Err(ConfigError::Refused { setting: "bucket", given: bucket.to_string(), rule });
            }
            BucketStore::read(&bucket.file).map_err(|reason| ConfigError::Bucket { file: bucket.file.clone(), reason })?;
        }
        for (number, label) in self.node_label.iter().enumerate() {
            if self.node_label[..number].iter().any(|other| other.key == label.key) {
                let rule = "each label is given once";
                return Err(ConfigError::Refused { setting: "node_label", given: label.to_string(), rule });
            }
        }
        if self.docker_gvisor_runtime.is_empty() {
            let rule = "it is the name of a runtime in Docker's daemon.json";
            return Err(ConfigError::Refused { setting: "docker_gvisor_runtime", given: String::new(), rule });
        }
        if self.tier == Tier::Machine {
            let rule = "it is namespace or gvisor: only images with a VM have the tier machine";
            return Err(ConfigError::Refused { setting: "tier", given: self.tier.to_string(), rule });
        }
        let ours = |port: u16| self.listen.iter().copied().chain(agentflow).any(|address| address.port() == port);
        if let Some(&port) = self.host_port.iter().find(|&&port| matches!(port, 0 | 53) || ours(port)) {
            let rule = "it is from 1 to 65535, not 53, where sandboxes' names are answered, and no port of this server";
            return Err(ConfigError::Refused { setting: "host_port", given: port.to_string(), rule });
        }
        if let Some(subnet) = self.subnet.filter(|s| !s.address.is_ipv4() || s.prefix != 16) {
            let rule = "it is a whole IPv4 /16, such as 10.209.0.0/16";
            return Err(ConfigError::Refused { setting: "subnet", given: subnet.to_string(), rule });
        }
        let files = [
            ("extra_ca", &self.extra_ca),
            ("runsc", &self.runsc),
            ("rclone", &self.rclone),
            ("templates_dir", &self.templates_dir),
            ("environments_file", &self.environments_file),
        ];
        for (setting, path) in files {
            if let Some(path) = path {
                let opened = std::fs::File::open(path).map(drop);
                opened.map_err(|source| ConfigError::NoFile { setting, path: path.clone(), source })?;
            }
        }
        Ok(())
    }
}

/// The effective configuration as valid TOML, with the source of each value.
pub(crate) fn show(matches: &ArgMatches, flags: &Settings, aio: &Settings, file: &Settings, path: Option<&Path>) -> String {
    let effective = flags.clone().over(aio.clone()).over(file.clone()).or_defaults();
    let table = toml::Table::try_from(&effective).expect("settings are plain TOML values");
    let mut out = String::new();
    for name in Settings::NAMES {
        let source = match matches.value_source(name) {
            Some(ValueSource::CommandLine) => format!("flag --{}", name.replace('_', "-")),
            Some(ValueSource::EnvVariable) => format!("variable ARENITE_{}", name.to_uppercase()),
            _ if aio.is_set(name) => {
                let variable = OTHER_VARIABLES.iter().find(|(of, _)| of == name).map_or("", |(_, variable)| variable);
                format!("variable {variable}")
            }
            _ if file.is_set(name) => path.map_or("file".to_owned(), |p| format!("file {}", p.display())),
            _ => "default".to_owned(),
        };
        // Writing to a String can't fail.
        let _ = match table.get(*name) {
            Some(_) if SECRETS.contains(name) => writeln!(out, "# {name} is set, and not shown  # {source}"),
            Some(value) => writeln!(out, "{name} = {value}  # {source}"),
            None => writeln!(out, "# {name} is not set"),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Settings {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn the_upper_layer_wins_setting_by_setting() {
        let flags = parse("prepared_slots = 1");
        let file = parse("prepared_slots = 2\ncreate_queue = 3");
        let config = flags.over(file).resolve().unwrap();
        assert_eq!((config.prepared_slots, config.create_queue, config.memory_reserve), (1, 3, Size(512 << 20)));
    }

    #[test]
    fn a_bind_that_others_reach_is_refused_with_a_way_out() {
        for address in ["0.0.0.0:8080", "[::]:8080", "192.0.2.1:80", "[::ffff:192.0.2.1]:80"] {
            for setting in ["listen", "agentflow_listen"] {
                let value = if setting == "listen" { format!("[{address:?}]") } else { format!("{address:?}") };
                let error = parse(&format!("{setting} = {value}")).resolve().unwrap_err();
                assert!(matches!(error, ConfigError::Exposed { .. }), "{setting} {address}: {error}");
                assert!(error.hint().unwrap().contains("tunnel"));
            }
        }
        parse("listen = [\"0.0.0.0:8080\"]\ntenants = true").resolve().unwrap();
        let with_key = "listen = [\"0.0.0.0:8080\"]\napi_key = \"0123456789abcdef\"";
        assert!(!parse(with_key).resolve().unwrap().has_weak_key);
        for address in ["127.0.0.1:0", "127.8.8.8:1", "[::1]:8080", "[::ffff:127.0.0.1]:80"] {
            parse(&format!("listen = [{address:?}]")).resolve().unwrap();
        }
    }

    #[test]
    fn numbers_and_ranges_out_of_bounds_are_refused_by_name() {
        for (text, setting) in [
            ("max_sandboxes = 0", "max_sandboxes"),
            ("prepared_slots = 10000", "prepared_slots"),
            ("node_label = [\"zone=a\", \"zone=b\"]", "node_label"),
            ("subnet = \"fd00::/16\"", "subnet"),
            ("subnet = \"10.0.0.0/8\"", "subnet"),
            ("listen = []", "listen"),
            ("extra_ca = \"/does/not/exist.pem\"", "extra_ca"),
            ("runsc = \"/does/not/exist/runsc\"", "runsc"),
            ("rclone = \"/does/not/exist/rclone\"", "rclone"),
            ("bucket = [\"a=/does/not/exist.toml\"]", "bucket"),
            ("bucket = [\"a=/x\"]\nengine = \"docker\"", "bucket"),
            ("tier = \"machine\"", "tier"),
            ("docker_gvisor_runtime = \"\"", "docker_gvisor_runtime"),
            ("tls_cert = \"/x.pem\"", "tls_cert"),
            ("tls_key = \"/x.pem\"", "tls_key"),
            ("tls_cert = \"/does/not/exist.pem\"\ntls_key = \"/does/not/exist.pem\"", "tls_cert and tls_key"),
            ("api_key = \"\"", "api_key"),
            ("api_key = \"two words\"", "api_key"),
            ("jwt_public_key = \"not base64!\"", "jwt_public_key"),
            ("jwt_public_key = \"bm8gUEVN\"", "jwt_public_key"),
            ("jwt_issuer = \"x\"", "jwt_issuer"),
            ("jwt_audience = \"x\"\ntenants = true", "jwt_audience"),
            ("jwt_issuer = \"x\"\njwt_audience = \"x\"\njwt_jwks = \"/dev/null\"", "jwt_issuer"),
            ("tenants = true\njwt_issuer = \"x\"\njwt_audience = \"x\"\njwt_jwks = \"/dev/null\"", "jwt_jwks"),
            ("otlp_sample = 1.5", "otlp_sample"),
            ("otlp_sample = nan", "otlp_sample"),
            ("otlp_endpoint = \"localhost:4318\"", "otlp_endpoint"),
            ("store = \"\"", "store"),
            ("store = \"mysql://u:s3cret@h/d\"", "store"),
            ("store = \"postgres://u:s3cret@h/d?sslmode=require\"", "store"),
            ("ticket_ttl_seconds = 0", "ticket_ttl_seconds"),
            ("ticket_ttl_seconds = 86401", "ticket_ttl_seconds"),
            ("webhook_retry_seconds = 2592001", "webhook_retry_seconds"),
            ("secret_key_file = \"/x\"\nsecret_key_command = \"true\"", "secret_key_command"),
            ("image_pull_wait_seconds = 0", "image_pull_wait_seconds"),
            ("image_keep_days = 3651", "image_keep_days"),
        ] {
            let message = parse(text).resolve().unwrap_err().to_string();
            assert!(message.starts_with(setting) && !message.contains("s3cret"), "{message}");
        }
    }

    #[test]
    fn the_store_is_a_database_or_sqlite() {
        let database = |text: &str| parse(text).resolve().unwrap().database.map(|address| address.to_string());
        assert_eq!(database(""), None);
        assert_eq!(database("store = \"sqlite\""), None);
        assert_eq!(database("store = \"postgres://u:s3cret@h/d\"").unwrap(), "database d on h");
    }

    #[test]
    fn aios_variables_count_where_ours_are_not_set() {
        let given = |name: &str| match name {
            "SANDBOX_API_KEY" => Some("of-aio".to_owned()),
            "TICKET_TTL_SECONDS" => Some("60".to_owned()),
            _ => None,
        };
        let aio = Settings::from_other_variables(given).unwrap();
        let both = parse("ticket_ttl_seconds = 5").over(aio.clone());
        assert_eq!((both.api_key, both.ticket_ttl_seconds), (Some(Secret("of-aio".to_owned())), Some(5)));
        assert!(!format!("{aio:?}").contains("of-aio"));
        assert!(Settings::from_other_variables(|_| Some(String::new())).unwrap().api_key.is_none());
        let slots = Settings::from_other_variables(|name| (name == "ARENITE_POOL_SIZE").then(|| "3".to_owned()));
        assert_eq!(slots.unwrap().prepared_slots, Some(3));
        let refused = Settings::from_other_variables(|name| (name == "TICKET_TTL_SECONDS").then(|| "soon".to_owned()));
        assert!(refused.unwrap_err().to_string().starts_with("TICKET_TTL_SECONDS"));
    }

    #[test]
    fn every_setting_has_a_variable_and_a_flag_of_its_name() {
        let command = Settings::augment_args(clap::Command::new("serve"));
        for name in Settings::NAMES {
            let arg = command.get_arguments().find(|a| a.get_id() == *name).unwrap();
            assert_eq!(arg.get_long().unwrap(), name.replace('_', "-"));
            assert_eq!(arg.get_env().unwrap().to_str().unwrap(), format!("ARENITE_{}", name.to_uppercase()));
        }
    }
}
