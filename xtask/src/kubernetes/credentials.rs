//! Certificates, tokens, and kubeconfigs of a cluster.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::network;
use super::process::direct;
use crate::command;
use crate::failure::{Attempt, Failure, Outcome};

/// The administrator, as which tests and people use the cluster.
pub(super) const ADMIN: &str = "admin";
/// Users besides the nodes: a name here, the name in Kubernetes, and groups.
const USERS: [(&str, &str, &str); 5] = [
    (ADMIN, "arenite-admin", "system:masters"),
    ("controller-manager", "system:kube-controller-manager", ""),
    ("scheduler", "system:kube-scheduler", ""),
    ("proxy", "system:kube-proxy", ""),
    // The service account to which its manifests give rights.
    (
        "agent-sandbox",
        "system:serviceaccount:agent-sandbox-system:agent-sandbox-controller",
        "system:serviceaccounts,system:serviceaccounts:agent-sandbox-system",
    ),
];
/// Bytes of a token, which is written in hexadecimal digits.
const TOKEN_BYTES: usize = 24;

/// The directory of credentials. Only root can read it.
pub(super) struct Credentials {
    dir: PathBuf,
}

impl Credentials {
    pub(super) fn create(dir: &Path, nodes: usize) -> Result<Self, Failure> {
        fs::create_dir_all(dir).attempt(|| format!("could not make {}", dir.display()))?;
        command::output(direct("chmod").arg("0700").arg(dir))?;
        let credentials = Self { dir: dir.to_owned() };
        credentials.openssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /CN=arenite-kubernetes -keyout ca.key -out ca.crt")?;
        // Kubernetes reads keys of service accounts in SEC 1, and not in PKCS 8.
        credentials.openssl("ecparam -name prime256v1 -genkey -noout -out service-accounts.key")?;
        let names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"].map(|name| format!("DNS:{name}")).join(",");
        let names = format!("IP:{},IP:{},IP:127.0.0.1,{names}", network::node_address(1), network::API_SERVICE);
        credentials.certificate("apiserver", "/CN=kube-apiserver", &names)?;
        credentials.certificate("kubelet-client", "/O=system:masters/CN=kube-apiserver", "DNS:kube-apiserver")?;
        credentials.users(nodes)?;
        Ok(credentials)
    }

    /// The path of a file, for command lines.
    pub(super) fn path(&self, file: &str) -> String {
        self.dir.join(file).display().to_string()
    }

    pub(super) fn kubeconfig(&self, user: &str) -> String {
        self.path(&format!("{user}.kubeconfig"))
    }

    fn openssl(&self, words: &str) -> Result<String, Failure> {
        command::output(direct("openssl").args(words.split(' ')).current_dir(&self.dir))
    }

    /// Makes `NAME.key` and `NAME.crt`.
    fn certificate(&self, name: &str, subject: &str, names: &str) -> Outcome {
        let extensions = format!("basicConstraints=CA:FALSE\nsubjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n");
        self.write(&format!("{name}.extensions"), &extensions)?;
        self.openssl(&format!(
            "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj {subject} -keyout {name}.key -out {name}.csr"
        ))?;
        self.openssl(&format!("x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -extfile {name}.extensions -out {name}.crt"))?;
        Ok(())
    }

    /// Gives each user a token and a kubeconfig.
    fn users(&self, nodes: usize) -> Outcome {
        let nodes = (1..=nodes).map(|node| (format!("node{node}"), format!("system:node:node{node}"), "system:nodes".to_owned()));
        let users = USERS.map(|(name, user, groups)| (name.to_owned(), user.to_owned(), groups.to_owned()));
        let authority = self.openssl("base64 -A -in ca.crt")?;
        let mut tokens = String::new();
        for (name, user, groups) in users.into_iter().chain(nodes) {
            let token = random_token()?;
            let groups = if groups.is_empty() { String::new() } else { format!(",\"{groups}\"") };
            tokens += &format!("{token},{user},{name}{groups}\n");
            let server = format!("https://{}:6443", network::node_address(1));
            // JSON is YAML.
            let config = json!({
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "arenite", "cluster": {"server": server, "certificate-authority-data": authority.trim()}}],
                "users": [{"name": name, "user": {"token": token}}],
                "contexts": [{"name": "arenite", "context": {"cluster": "arenite", "user": name}}],
                "current-context": "arenite",
            });
            self.write(&format!("{name}.kubeconfig"), &format!("{config:#}\n"))?;
        }
        self.write("tokens.csv", &tokens)
    }

    fn write(&self, name: &str, text: &str) -> Outcome {
        let file = self.dir.join(name);
        fs::write(&file, text).attempt(|| format!("could not write {}", file.display()))
    }
}

fn random_token() -> Result<String, Failure> {
    let mut bytes = [0; TOKEN_BYTES];
    let mut random = fs::File::open("/dev/urandom").attempt(|| "could not open /dev/urandom".into())?;
    random.read_exact(&mut bytes).attempt(|| "could not read /dev/urandom".into())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
