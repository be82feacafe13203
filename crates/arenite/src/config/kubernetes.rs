//! Settings of the engine `kubernetes`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use arenite_engine::{KubernetesConfig, VolumeAccess};
use arenite_model::Tier;

use super::values::{ClassOf, EngineKind, ImageOf};
use super::{ConfigError, Settings, absolute};

/// The file of the server's private key in the data directory.
const IDENTITY: &str = "kubernetes-identity.pem";

impl Settings {
    /// The engine's settings, with all defaults filled in; none for another engine.
    pub(super) fn kubernetes(&self, data_dir: &Path) -> Result<Option<KubernetesConfig>, ConfigError> {
        if self.engine != Some(EngineKind::Kubernetes) {
            return Ok(None);
        }
        self.refuse_of_hosts()?;
        let refuse = |setting, given: String, rule| Err(ConfigError::Refused { setting, given, rule });
        let name = self.kubernetes_name.clone().unwrap_or_default();
        let is_label = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
        let ends = |text: &str| [text.bytes().next(), text.bytes().last()].iter().flatten().all(u8::is_ascii_alphanumeric);
        if name.is_empty() || name.len() > 63 || !is_label(&name) || !ends(&name) {
            return refuse("kubernetes_name", name, "it is the value of a label: 1 to 63 letters, digits, -, _ and .");
        }
        let Some(guest_image) = self.kubernetes_guest_image.clone().filter(|image| !image.trim().is_empty()) else {
            let rule = "the engine kubernetes needs an image with this program, such as that of cargo xtask container-image";
            return refuse("kubernetes_guest_image", "nothing".to_owned(), rule);
        };
        let wait = self.kubernetes_schedule_wait_seconds.unwrap_or_default();
        if wait > 3600 {
            return refuse("kubernetes_schedule_wait_seconds", wait.to_string(), "it is from 0 to 3600, which is an hour");
        }
        let is_class = |name: &str| {
            let is_plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.'));
            !name.is_empty() && name.len() <= 253 && is_plain && ends(name)
        };
        if let Some(class) = self.kubernetes_volume_class.clone().filter(|class| !is_class(class)) {
            return refuse(
                "kubernetes_volume_class",
                class,
                "it is the name of a StorageClass; kubectl get storageclass lists them",
            );
        }
        let classes = self.kubernetes_runtime_class.iter().flatten();
        let runtime_classes: BTreeMap<Tier, String> = classes.map(|ClassOf { tier, class }| (*tier, class.clone())).collect();
        let default_tier = self.tier.unwrap_or_default();
        if default_tier != Tier::Namespace && !runtime_classes.contains_key(&default_tier) {
            return refuse("tier", default_tier.to_string(), "kubernetes_runtime_class has no class for it");
        }
        for (setting, path) in [("kubeconfig", &self.kubeconfig), ("kubernetes_template", &self.kubernetes_template)] {
            if let Some(path) = path {
                let opened = std::fs::File::open(path).map(drop);
                opened.map_err(|source| ConfigError::NoFile { setting, path: path.clone(), source })?;
            }
        }
        let images = self.kubernetes_image.iter().flatten();
        Ok(Some(KubernetesConfig {
            kubeconfig: self.kubeconfig.clone().map(absolute),
            namespace: self.kubernetes_namespace.clone(),
            name,
            guest_image,
            images: images.map(|ImageOf { name, reference }| (name.to_string(), reference.clone())).collect(),
            warm_pools: self
                .kubernetes_warm_pool
                .iter()
                .flatten()
                .map(|ImageOf { name, reference }| (name.to_string(), reference.clone()))
                .collect(),
            template: self.kubernetes_template.clone().map(absolute),
            identity: self.kubernetes_identity.clone().map_or_else(|| data_dir.join(IDENTITY), absolute),
            runtime_classes,
            default_tier,
            has_network_policies: self.kubernetes_network_policies.unwrap_or_default(),
            schedule_wait: Duration::from_secs(wait.into()),
            volume_class: self.kubernetes_volume_class.clone(),
            volume_access: self.kubernetes_volume_access.map(VolumeAccess::from).unwrap_or_default(),
        }))
    }

    /// Refuses settings of this host, since they would have no effect.
    fn refuse_of_hosts(&self) -> Result<(), ConfigError> {
        fn first<T: ToString>(list: Option<&Vec<T>>) -> Option<String> {
            list.and_then(|list| list.first()).map(T::to_string)
        }
        let path = |path: Option<&std::path::PathBuf>| path.map(|path| path.display().to_string());
        let of_hosts = [
            ("extra_ca", path(self.extra_ca.as_ref())),
            ("runsc", path(self.runsc.as_ref())),
            ("bucket", first(self.bucket.as_ref())),
            ("storage_size", self.storage_size.as_ref().map(ToString::to_string)),
            ("subnet", self.subnet.as_ref().map(ToString::to_string)),
            ("deny", first(self.deny.as_ref())),
            ("allow", first(self.allow.as_ref())),
            ("resolver", first(self.resolver.as_ref())),
            ("volume", first(self.volume.as_ref())),
            ("host_port", first(self.host_port.as_ref())),
        ];
        match of_hosts.into_iter().find_map(|(setting, given)| Some((setting, given?))) {
            Some((setting, given)) => {
                Err(ConfigError::Refused { setting, given, rule: "the engine kubernetes does not have it" })
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str) -> Result<Option<KubernetesConfig>, ConfigError> {
        let settings: Settings = toml::from_str(text).unwrap();
        settings.resolve().map(|config| config.kubernetes)
    }

    #[test]
    fn the_engine_needs_an_image_with_the_guest_and_nothing_of_hosts() {
        assert!(resolved("").unwrap().is_none());
        let engine = "engine = \"kubernetes\"\n";
        assert!(resolved(engine).unwrap_err().to_string().contains("kubernetes_guest_image"));
        let whole = format!("{engine}kubernetes_guest_image = \"localhost/arenite:1\"\n");
        let config = resolved(&whole).unwrap().unwrap();
        assert_eq!((config.name.as_str(), config.schedule_wait), ("arenite", Duration::ZERO));
        assert!(config.identity.ends_with(IDENTITY));
        for (line, part) in [
            ("deny = [\"10.0.0.0/8\"]", "deny"),
            ("kubernetes_name = \"-a\"", "kubernetes_name"),
            ("kubernetes_schedule_wait_seconds = 3601", "3600"),
            ("tier = \"gvisor\"", "kubernetes_runtime_class"),
            ("kubeconfig = \"/nonexistent\"", "kubeconfig"),
            ("kubernetes_volume_class = \"\"", "kubernetes_volume_class"),
            ("kubernetes_volume_class = \"A b\"", "StorageClass"),
        ] {
            let error = resolved(&format!("{whole}{line}\n")).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
        let classes =
            "tier = \"gvisor\"\nkubernetes_runtime_class = [\"gvisor=runsc\"]\nkubernetes_image = [\"base=r.example/b:1\"]";
        let config = resolved(&format!("{whole}{classes}\n")).unwrap().unwrap();
        assert_eq!(config.runtime_classes[&Tier::Gvisor], "runsc");
        assert_eq!(config.images["base"], "r.example/b:1");
        assert_eq!((config.volume_class, config.volume_access), (None, VolumeAccess::ReadWriteOnce));
        let volumes = "kubernetes_volume_class = \"fast.ssd\"\nkubernetes_volume_access = \"ReadWriteMany\"";
        let config = resolved(&format!("{whole}{volumes}\n")).unwrap().unwrap();
        assert_eq!((config.volume_class.as_deref(), config.volume_access), (Some("fast.ssd"), VolumeAccess::ReadWriteMany));
        // A pod alone could mount it, so sandboxes could not share it.
        assert!(toml::from_str::<Settings>("kubernetes_volume_access = \"ReadWriteOncePod\"").is_err());
    }

    #[test]
    fn more_creates_run_at_once_where_nodes_do_the_work() {
        let creates = |text: &str| toml::from_str::<Settings>(text).unwrap().resolve().unwrap().max_concurrent_creates;
        let cluster = "engine = \"kubernetes\"\nkubernetes_guest_image = \"localhost/arenite:1\"\n";
        assert_eq!(creates(cluster), super::super::CLUSTER_CREATES);
        assert_eq!(creates(&format!("{cluster}max_concurrent_creates = 3")), 3);
    }
}
