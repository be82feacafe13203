//! Buckets that the operator declares: a file for each, with its address and credentials.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::Deserialize;

/// What rclone replaces in names: keys are UTF-8, and control characters don't fit into the XML of lists.
const ENCODING: &str = "Slash,InvalidUtf8,Dot,Ctl,Del";
/// Largest file of a bucket, in bytes.
const MOST_BYTES: u64 = 64 << 10;
/// Variables of the server that rclone gets, if the file has no keys: those of AWS's own tools.
const AWS_VARIABLES: [&str; 8] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];
/// Variables of the server that rclone gets anyway.
const NETWORK_VARIABLES: [&str; 8] =
    ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"];

/// The content of a bucket's file.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketStore {
    /// `s3://BUCKET/PREFIX`.
    url: String,
    /// The URL of the server; absent: AWS.
    endpoint: Option<String>,
    region: Option<String>,
    /// Rclone's name for the kind of server, which has its deviations.
    provider: Option<String>,
    /// Whether the bucket is in the path of URLs, and not in the host name. By default if there is an endpoint.
    path_style: Option<bool>,
    access_key_id: Option<String>,
    secret_access_key: Option<String>,
    session_token: Option<String>,
    #[serde(skip)]
    location: BucketPath,
}

/// The bucket and the prefix of its URL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct BucketPath {
    bucket: String,
    /// Without slashes at its ends; empty: none.
    prefix: String,
}

impl std::fmt::Debug for BucketStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BucketStore").field("location", &self.location).field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl BucketStore {
    /// Reads a bucket's file. An error never has a part of its content.
    pub fn read(file: &Path) -> Result<Self, String> {
        let about = fs::metadata(file).map_err(|error| error.to_string())?;
        if !about.is_file() || about.len() > MOST_BYTES {
            return Err("it is no file, or larger than 64 KiB".to_owned());
        }
        let store = Self::parse(&fs::read_to_string(file).map_err(|error| error.to_string())?)?;
        if store.secret_access_key.is_some() && about.mode() & 0o077 != 0 {
            return Err("other users can read it, and it has a secret; close it with: chmod 600".to_owned());
        }
        Ok(store)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut store: Self = toml::from_str(text).map_err(|error| match error.span() {
            // The message of the parser shows the line, which may be that of a secret.
            Some(span) => format!("its line {} is not valid", text[..span.start.min(text.len())].lines().count().max(1)),
            None => error.message().to_owned(),
        })?;
        store.location = BucketPath::parse(&store.url)?;
        if let Some(endpoint) = &store.endpoint {
            let rest = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
            let is_plain = |rest: &str| !rest.is_empty() && !rest.contains(['@', '?', '#', ' ']);
            if !rest.is_some_and(is_plain) {
                return Err("endpoint is no URL such as https://s3.example.com: keys have their own settings".to_owned());
            }
        }
        let values = [&store.endpoint, &store.region, &store.provider, &store.access_key_id];
        let secrets = [&store.secret_access_key, &store.session_token];
        // It would be another line of rclone's configuration, or quoted there.
        let is_plain = |value: &String| value.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '`'));
        if !values.into_iter().chain(secrets).flatten().all(is_plain) {
            return Err("a value has spaces, quotes, or other characters than ASCII".to_owned());
        }
        if store.access_key_id.is_some() != store.secret_access_key.is_some() {
            return Err("access_key_id and secret_access_key are set together".to_owned());
        }
        Ok(store)
    }

    /// A path for rclone: of a folder below the prefix.
    pub(super) fn remote(&self, folder: &str) -> String {
        let parts = [self.location.bucket.as_str(), self.location.prefix.as_str(), folder];
        let path: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        // The slash says that it is no object, so that rclone does not look for one.
        format!("bucket:{}/", path.join("/"))
    }

    /// Rclone's settings of the remote `bucket`.
    fn settings(&self) -> Vec<(&'static str, String)> {
        let provider = self.provider.as_deref().unwrap_or(if self.endpoint.is_some() { "Other" } else { "AWS" });
        let path_style = self.path_style.unwrap_or(self.endpoint.is_some());
        let mut settings = vec![
            ("type", "s3".to_owned()),
            ("provider", provider.to_owned()),
            ("force_path_style", path_style.to_string()),
            ("env_auth", self.access_key_id.is_none().to_string()),
            // Only operators make buckets.
            ("no_check_bucket", "true".to_owned()),
            // Empty directories stay.
            ("directory_markers", "true".to_owned()),
            ("encoding", ENCODING.to_owned()),
            ("upload_concurrency", "2".to_owned()),
        ];
        let optional = [
            ("endpoint", &self.endpoint),
            ("region", &self.region),
            ("access_key_id", &self.access_key_id),
            ("secret_access_key", &self.secret_access_key),
            ("session_token", &self.session_token),
        ];
        settings.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
        settings
    }

    /// The settings as a configuration file. Rclone names the cache of a mount by settings from other sources, so it would not
    /// find what waits for its upload after a change of keys.
    pub(super) fn config_file(&self) -> String {
        let lines = self.settings().into_iter().map(|(name, value)| format!("{name} = {value}\n"));
        lines.fold("[bucket]\n".to_owned(), |file, line| file + &line)
    }

    /// The settings as variables.
    pub(super) fn variables(&self) -> Vec<(String, String)> {
        let name = |name: &str| format!("RCLONE_CONFIG_BUCKET_{}", name.to_uppercase());
        self.settings().into_iter().map(|(setting, value)| (name(setting), value)).collect()
    }

    /// What rclone gets of the server's environment.
    pub(super) fn inherited(&self) -> Vec<(&'static str, String)> {
        let of_aws = AWS_VARIABLES.iter().filter(|_| self.access_key_id.is_none());
        NETWORK_VARIABLES.iter().chain(of_aws).filter_map(|name| Some((*name, std::env::var(name).ok()?))).collect()
    }

    /// A text of rclone or of the bucket's server without credentials, on one line.
    pub(super) fn cleaned(&self, text: &str) -> String {
        let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let secrets = [&self.secret_access_key, &self.access_key_id, &self.session_token];
        for secret in secrets.into_iter().flatten().filter(|secret| secret.len() > 2) {
            text = text.replace(secret.as_str(), "…");
        }
        text.chars().take(400).collect()
    }
}

impl BucketPath {
    fn parse(url: &str) -> Result<Self, String> {
        let invalid = || Err("url is no s3://BUCKET/PREFIX of letters, digits, -, _ and .".to_owned());
        let Some(rest) = url.strip_prefix("s3://") else { return invalid() };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_matches('/');
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let is_part = |part: &str| !part.is_empty() && part != "." && part != ".." && part.chars().all(is_name);
        if !is_part(bucket) || !prefix.is_empty() && !prefix.split('/').all(is_part) {
            return invalid();
        }
        Ok(Self { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const WHOLE: &str = "url = \"s3://agents/of/tests/\"\nendpoint = \"http://127.0.0.1:9000\"\nregion = \"x\"\n\
                         access_key_id = \"AKID\"\nsecret_access_key = \"hidden-secret\"\n";

    #[test]
    fn a_bucket_becomes_variables_and_a_path() {
        let store = BucketStore::parse(WHOLE).unwrap();
        assert_eq!(store.remote("acme/v1"), "bucket:agents/of/tests/acme/v1/");
        let variables = store.variables();
        let value =
            |name: &str| variables.iter().find(|(n, _)| n == &format!("RCLONE_CONFIG_BUCKET_{name}")).map(|(_, v)| v.as_str());
        assert_eq!(
            (value("PROVIDER"), value("FORCE_PATH_STYLE"), value("ENV_AUTH"), value("SECRET_ACCESS_KEY")),
            (Some("Other"), Some("true"), Some("false"), Some("hidden-secret"))
        );
        let file = store.config_file();
        assert!(file.starts_with("[bucket]\ntype = s3\n") && file.contains("\naccess_key_id = AKID\n"), "{file}");
        assert!(!format!("{store:?}").contains("hidden"), "{store:?}");
        assert_eq!(store.cleaned("key AKID\n is  hidden-secret"), "key … is …");
        let plain = BucketStore::parse("url = \"s3://agents\"").unwrap();
        assert_eq!(plain.remote("a"), "bucket:agents/a/");
        assert!(plain.config_file().contains("provider = AWS\nforce_path_style = false\nenv_auth = true\n"));
    }

    #[test]
    fn invalid_files_are_refused_without_their_content() {
        for bad in [
            "",
            "url = \"agents\"",
            "url = \"s3://\"",
            "url = \"s3://a/../b\"",
            "url = \"s3://a b\"",
            "url = \"s3://a\"\nendpoint = \"ftp://x\"",
            "url = \"s3://a\"\nendpoint = \"http://key:hidden@x\"",
            "url = \"s3://a\"\nsecret_access_key = \"hidden\"",
            "url = \"s3://a\"\nsecret_access_key = \"hidden",
            "url = \"s3://a\"\nsecret = \"hidden\"",
            "url = \"s3://a\"\nregion = \"x\\nenv_auth = true\"",
        ] {
            let error = BucketStore::parse(bad).unwrap_err();
            assert!(!error.contains("hidden"), "{bad}: {error}");
        }
        let top = tempfile::tempdir().unwrap();
        let file = top.path().join("bucket.toml");
        fs::write(&file, WHOLE).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(BucketStore::read(&file).unwrap_err().contains("chmod 600"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        BucketStore::read(&file).unwrap();
        assert!(BucketStore::read(top.path()).is_err());
    }
}
