use std::fs;
use std::sync::Mutex;

use arenite_model::TenantId;
use tokio::sync::watch;

use super::*;

/// Replaces the sandboxes: records each step and follows its command, on the layer's own directory. Commands are `write NAME`,
/// `fail CODE`, `break` and `hang`.
#[derive(Default)]
struct RecordingRunner {
    steps: Mutex<Vec<RunStep>>,
    /// Notified when a step hangs.
    hangs: Arc<tokio::sync::Notify>,
}

impl RecordingRunner {
    fn taken(&self) -> Vec<RunStep> {
        std::mem::take(&mut self.steps.lock().unwrap())
    }
}

#[async_trait]
impl BuildRunner for RecordingRunner {
    async fn run(&self, step: RunStep, output: &mut StepOutput<'_>) -> Result<i32, RunnerError> {
        assert!(step.upper.is_dir() && step.work.is_dir());
        assert_eq!(step.upper.parent(), Some(step.layer.as_path()));
        self.steps.lock().unwrap().push(step.clone());
        // Files that the sandbox itself leaves.
        fs::create_dir_all(step.upper.join("run/arenite"))?;
        fs::create_dir_all(step.work.join("work"))?;
        let words: Vec<&str> = step.argv.last().unwrap().split(' ').collect();
        match words[..] {
            ["write", name] => fs::write(step.upper.join(name), name)?,
            ["fail", code] => {
                output(b"first\nlast");
                return Ok(code.parse()?);
            }
            ["break"] => return Err("no sandbox today".into()),
            ["hang"] => {
                self.hangs.notify_one();
                std::future::pending().await
            }
            _ => {}
        }
        output(b"done\n");
        Ok(0)
    }
}

struct Bench {
    scratch: tempfile::TempDir,
    store: ImageStore,
    runner: RecordingRunner,
    env: BuildEnv,
    options: BuildOptions,
    events: Vec<String>,
}

impl Bench {
    /// A store with an image `base`: an `/etc/passwd` and a user's home.
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let store = ImageStore::open(scratch.path().join("store")).unwrap();
        fs::create_dir(scratch.path().join("context")).unwrap();
        let lock = store.lock().unwrap();
        let layer = store.new_layer().unwrap();
        fs::create_dir_all(layer.files().join("etc")).unwrap();
        fs::create_dir_all(layer.files().join("home/gem")).unwrap();
        let passwd = "root:x:0:0::/root:/bin/sh\ngem:x:1000:1001::/home/gem:/bin/bash\n";
        fs::write(layer.files().join("etc/passwd"), passwd).unwrap();
        fs::write(layer.files().join("etc/group"), "root:x:0:\nweb:x:33:gem\n").unwrap();
        let digest = "0".repeat(64);
        store.seal(&lock, &layer, &digest, "FROM nothing").unwrap();
        let mut config = ImageConfig::default();
        config.env.insert("PATH".into(), "/bin".into());
        let name = "base".parse().unwrap();
        store.publish(&lock, &name, digest.clone(), vec![digest], config).unwrap();
        drop(lock);
        let mut env = BuildEnv::default();
        env.env.insert("http_proxy".into(), "http://secret@proxy.example".into());
        env.env.insert("PATH".into(), "/host".into());
        env.files.push(("/run/arenite/apt.conf".into(), b"x".to_vec()));
        Self { scratch, store, runner: RecordingRunner::default(), env, options: BuildOptions::default(), events: Vec::new() }
    }

    async fn build(&mut self, name: &str, text: &str) -> Result<Image, ImageError> {
        self.build_with(name, text, true).await
    }

    async fn build_with(&mut self, name: &str, text: &str, use_cache: bool) -> Result<Image, ImageError> {
        self.build_as(name, text, use_cache, None).await
    }

    /// A build for a tenant, and what it made or reused.
    async fn build_for(&mut self, tenant: &TenantId, text: &str, max_bytes: u64) -> (Result<Image, ImageError>, Vec<String>) {
        let (layers, (_cancel, cancel)) = (Mutex::default(), watch::channel(false));
        let tenant = TenantBuild { tenant, owner: Some(tenant), max_bytes, is_offline: false, cancel, layers: &layers };
        let built = self.build_as("new", text, true, Some(tenant)).await;
        (built, layers.into_inner().unwrap().into_iter().collect())
    }

    async fn build_as(
        &mut self,
        name: &str,
        text: &str,
        use_cache: bool,
        tenant: Option<TenantBuild<'_>>,
    ) -> Result<Image, ImageError> {
        self.events.clear();
        let imagefile: Imagefile = text.parse().unwrap();
        let request = BuildRequest {
            imagefile: &imagefile,
            context_dir: &self.scratch.path().join("context"),
            name: &name.parse().unwrap(),
            env: &self.env,
            use_cache,
            options: &self.options,
            tenant,
        };
        let events = &mut self.events;
        build(&self.store, request, &self.runner, &mut |event| {
            events.push(match event {
                BuildEvent::Waiting => "waiting".to_owned(),
                BuildEvent::StepStarted { number, of, text } => format!("{number}/{of} {text}"),
                BuildEvent::Cached { .. } => "cached".to_owned(),
                BuildEvent::Output { line } => format!("> {line}"),
                BuildEvent::Warning { line, text } => format!("warning {line}: {text}"),
                BuildEvent::StepDone { .. } => "ok".to_owned(),
                BuildEvent::Done { built, .. } => format!("built {built}"),
            });
        })
        .await
    }

    fn unfinished(&self) -> usize {
        fs::read_dir(self.store.dir().join("building")).unwrap().count()
    }

    fn context(&self, name: &str, content: &str) {
        fs::write(self.scratch.path().join("context").join(name), content).unwrap();
    }
}

const FILE: &str = "FROM base\nRUN write one\nENV A=1 PATH=/a:$PATH\nLABEL what=\"it is\"\nUSER 1000\n\
    WORKDIR /home/gem\nRUN write two\nWORKDIR sub\nCOPY . .\n";

#[tokio::test]
async fn steps_run_in_order_with_what_was_set_and_become_layers() {
    let mut bench = Bench::new();
    bench.context("f", "x");
    let image = bench.build("new", FILE).await.unwrap();
    assert_eq!(
        bench.events,
        [
            "1/9 FROM base",
            "ok",
            "2/9 RUN write one",
            "> done",
            "ok",
            "3/9 ENV A=1 PATH=/a:$PATH",
            "ok",
            "4/9 LABEL what=\"it is\"",
            "ok",
            "5/9 USER 1000",
            "ok",
            "6/9 WORKDIR /home/gem",
            "ok",
            "7/9 RUN write two",
            "> done",
            "ok",
            "8/9 WORKDIR sub",
            "ok",
            "9/9 COPY . .",
            "ok",
            "built 4",
        ]
    );
    let steps = bench.runner.taken();
    let (one, two) = (&steps[0], &steps[1]);
    assert_eq!((one.user.as_str(), one.workdir.as_str()), ("root", "/"));
    assert_eq!((two.user.as_str(), two.workdir.as_str()), ("gem", "/home/gem"));
    assert_eq!(one.lower, [image.layers[0].dir.clone()]);
    assert_eq!(two.lower, [image.layers[0].dir.clone(), image.layers[1].dir.clone()]);
    assert_eq!(two.argv, ["/bin/sh", "-c", "write two"]);
    // The image's own variables go before the host's.
    assert_eq!(two.env["PATH"], "/a:/bin");
    assert_eq!(two.env["http_proxy"], "http://secret@proxy.example");
    assert_eq!(two.files, bench.env.files);

    assert_eq!(image.config.env.keys().collect::<Vec<_>>(), ["A", "PATH"]);
    assert_eq!(image.config.user.as_deref(), Some("gem"));
    assert_eq!(image.config.workdir.as_deref(), Some("/home/gem/sub"));
    assert_eq!(image.config.labels["what"], "it is");
    let made: Vec<_> = image.layers.iter().map(|l| l.created_by.as_str()).collect();
    assert_eq!(made, ["FROM nothing", "RUN write one", "RUN write two", "WORKDIR sub", "COPY . ."]);
    assert_eq!(fs::read_to_string(image.layers[2].dir.join("two")).unwrap(), "two");
    assert!(image.layers[4].dir.join("home/gem/sub/f").exists());
    // The mount points of the build's own files are not part of the layer.
    assert!(!image.layers[1].dir.join("run/arenite").exists());
    assert_eq!(bench.store.get(&"new".parse().unwrap()).unwrap().digest, image.digest);
    let manifest = fs::read_to_string(bench.store.dir().join("images/new.json")).unwrap();
    assert!(!manifest.contains("secret"));
}

#[tokio::test]
async fn a_layer_is_reused_until_something_above_it_changes() {
    let mut bench = Bench::new();
    bench.context("f", "x");
    let first = bench.build("new", FILE).await.unwrap();
    bench.runner.taken();
    // The host's proxy is not part of a layer.
    bench.env.env.clear();
    let second = bench.build("other", FILE).await.unwrap();
    assert_eq!(second.digest, first.digest);
    assert!(bench.runner.taken().is_empty());
    assert_eq!(bench.events.iter().filter(|e| *e == "cached").count(), 4);

    bench.context("f", "changed");
    let third = bench.build("other", FILE).await.unwrap();
    assert!(bench.runner.taken().is_empty());
    assert_eq!(third.layers[3].digest, first.layers[3].digest);
    assert_ne!(third.layers[4].digest, first.layers[4].digest);

    let changed = FILE.replace("A=1", "A=2");
    let fourth = bench.build("other", &changed).await.unwrap();
    assert_eq!(bench.runner.taken().len(), 1);
    assert_eq!(fourth.layers[1].digest, first.layers[1].digest);
    assert_ne!(fourth.layers[2].digest, first.layers[2].digest);

    let fresh = bench.build_with("other", FILE, false).await.unwrap();
    assert_eq!(bench.runner.taken().len(), 2);
    assert_ne!(fresh.layers[1].digest, first.layers[1].digest);
    // The first image is unchanged, whatever was built since.
    assert_eq!(bench.store.get(&"new".parse().unwrap()).unwrap().digest, first.digest);
}

#[tokio::test]
async fn a_failure_leaves_the_older_image_and_the_layers_before_it() {
    let mut bench = Bench::new();
    let older = bench.build("new", "FROM base\nRUN write one\n").await.unwrap();
    let text = "FROM base\nRUN write one\nRUN write two\nRUN fail 7\n";
    let error = bench.build("new", text).await.unwrap_err();
    assert_eq!(error.to_string(), "line 4: the command ended with exit code 7");
    assert!(matches!(&error, ImageError::Failed { tail, .. } if tail == &["first", "last"]));
    let error = bench.build("new", "FROM base\nRUN break\n").await.unwrap_err();
    assert!(error.to_string().contains("no sandbox today"), "{error}");
    assert_eq!(bench.unfinished(), 0);
    assert_eq!(bench.store.get(&"new".parse().unwrap()).unwrap().digest, older.digest);

    bench.runner.taken();
    bench.build("new", &text.replace("fail 7", "write three")).await.unwrap();
    assert_eq!(bench.runner.taken().len(), 1);
}

#[tokio::test]
async fn a_build_that_is_given_up_seals_nothing_and_frees_the_store() {
    let mut bench = Bench::new();
    let hangs = Arc::clone(&bench.runner.hangs);
    tokio::select! {
        ended = bench.build("new", "FROM base\nRUN hang\n") => panic!("{ended:?}"),
        () = hangs.notified() => {}
    }
    assert_eq!(bench.unfinished(), 1);
    assert!(bench.store.get(&"new".parse().unwrap()).is_err());
    bench.build("new", "FROM base\nRUN write one\n").await.unwrap();
    assert_eq!(bench.unfinished(), 0);
}

#[tokio::test]
async fn steps_that_can_not_be_carried_out_say_so_with_their_line() {
    let mut bench = Bench::new();
    for (step, message) in [
        ("USER nobody", "there is no user \"nobody\""),
        ("USER 70000", "there is no user \"70000\""),
        ("USER gem:nobody", "there is no group \"nobody\""),
        ("WORKDIR /etc/passwd/x", "can't be a directory in the image"),
        ("WORKDIR /etc/passwd", "is not a directory in the image"),
        ("ENV A=${NOPE:?give it}", "the variable NOPE: give it"),
        ("COPY *.txt /x/", "matches no file"),
        ("COPY missing /x", "is not in the context"),
        ("COPY --chown=nobody . /x", "there is no user \"nobody\""),
        ("COPY --chown=gem:nogroup . /x", "there is no group \"nogroup\""),
        ("COPY --chown=70000 . /x", "there is no user \"70000\""),
    ] {
        let error = bench.build("new", &format!("FROM base\n\n{step}")).await.unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("line 3: ") && text.contains(message), "{step}: {text}");
    }
    let error = bench.build("new", "FROM absent").await.unwrap_err();
    assert!(matches!(error, ImageError::NotFound { .. }), "{error}");
    let many = format!("FROM base\n{}", "RUN x\n".repeat(MAX_LAYERS));
    let error = bench.build("new", &many).await.unwrap_err();
    assert!(error.to_string().contains("more than 120 layers"), "{error}");
}

#[tokio::test]
async fn names_of_owners_are_looked_up_in_the_image() {
    use std::os::unix::fs::MetadataExt;
    let mut bench = Bench::new();
    bench.context("f", "x");
    for (owner, ids) in [("gem", (1000, 1001)), ("gem:web", (1000, 33)), ("5:6", (5, 6)), ("5", (5, 5))] {
        let text = format!("FROM base\nCOPY --chown={owner} f /f");
        let image = bench.build("new", &text).await.unwrap();
        let meta = fs::metadata(image.layers[1].dir.join("f")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), ids, "{owner}");
    }
}

#[tokio::test]
async fn a_second_build_waits_for_the_first() {
    let mut bench = Bench::new();
    let store = bench.store.clone();
    let lock = store.lock().unwrap();
    let (waits, waiting) = tokio::sync::oneshot::channel();
    let (name, env, context) = ("new".parse().unwrap(), bench.env.clone(), bench.scratch.path().to_owned());
    let second = tokio::spawn(async move {
        let imagefile: Imagefile = "FROM base\nRUN write one".parse().unwrap();
        let request = BuildRequest {
            imagefile: &imagefile,
            context_dir: &context,
            name: &name,
            env: &env,
            use_cache: true,
            options: &BuildOptions::default(),
            tenant: None,
        };
        let mut waits = Some(waits);
        build(&store, request, &RecordingRunner::default(), &mut |event| {
            if event == BuildEvent::Waiting {
                waits.take().unwrap().send(()).unwrap();
            }
        })
        .await
    });
    waiting.await.unwrap();
    drop(lock);
    second.await.unwrap().unwrap();
    bench.build("new", "FROM base\nRUN write one").await.unwrap();
    assert!(bench.events.contains(&"cached".to_owned()));
}

#[tokio::test]
async fn stages_are_built_in_order_and_copied_from() {
    let mut bench = Bench::new();
    let text = "ARG B=base\nFROM $B AS one\nARG A=1\nENV E=$A\nWORKDIR /home/gem\nRUN write a\nCMD [\"x\"]\n\
                FROM base AS unused\nRUN fail 1\nFROM one AS two\nRUN write b\nENTRYPOINT [\"y\"]\n\
                FROM base\nCOPY --from=two /a /b /c/\nRUN write c\n";
    let image = bench.build("new", text).await.unwrap();
    assert_eq!(bench.events.iter().filter(|e| e.contains('/') && e.contains(' ')).count(), 12, "{:?}", bench.events);
    assert!(bench.events[0].starts_with("1/12 "), "{:?}", bench.events);
    let steps = bench.runner.taken();
    assert_eq!(steps.iter().map(|s| s.argv[2].as_str()).collect::<Vec<_>>(), ["write a", "write b", "write c"]);
    // A stage that starts from another has its ARGs, directory, and variables; others do not.
    assert_eq!(
        (steps[1].env.get("A"), steps[1].env.get("E"), steps[1].workdir.as_str()),
        (Some(&"1".into()), Some(&"1".into()), "/home/gem")
    );
    assert_eq!((steps[2].env.get("A"), steps[2].env.get("E"), steps[2].workdir.as_str()), (None, None, "/"));
    assert_eq!(image.layers.len(), 3);
    assert_eq!(fs::read_to_string(image.layers[1].dir.join("c/b")).unwrap(), "b");
    assert_eq!(image.config.env.keys().collect::<Vec<_>>(), ["PATH"]);

    bench.options.target = Some("Two".to_owned());
    let image = bench.build("new", text).await.unwrap();
    assert!(bench.runner.taken().is_empty());
    // An ENTRYPOINT resets the base's CMD.
    assert_eq!((image.config.entrypoint, image.config.cmd), (vec!["y".to_owned()], Vec::new()));
    bench.options.target = Some("none".to_owned());
    assert!(bench.build("new", text).await.unwrap_err().to_string().contains("no stage \"none\""));
}

#[tokio::test]
async fn build_arguments_are_in_the_digest_and_secrets_are_not() {
    let mut bench = Bench::new();
    let text = "FROM base\nARG A=1\nRUN --mount=type=secret,id=s --mount=type=secret,id=v,env=V write x\n";
    bench.options.secrets.insert("s".into(), b"t0p".to_vec());
    bench.options.secrets.insert("v".into(), b"value".to_vec());
    bench.options.build_args.insert("https_proxy".into(), "http://given".into());
    let first = bench.build("new", text).await.unwrap();
    let step = bench.runner.taken().remove(0);
    assert_eq!(
        (step.env["A"].as_str(), step.env["V"].as_str(), step.env["https_proxy"].as_str()),
        ("1", "value", "http://given")
    );
    assert_eq!(step.secrets.len(), 1);
    assert_eq!((step.secrets[0].target.as_str(), step.secrets[0].content.as_slice()), ("/run/secrets/s", &b"t0p"[..]));
    assert!(!format!("{step:?}").contains("t0p") && !format!("{:?}", bench.options).contains("value"));
    bench.options.secrets.insert("s".into(), b"two".to_vec());
    bench.options.build_args.insert("https_proxy".into(), "http://other".into());
    assert_eq!(bench.build("new", text).await.unwrap().digest, first.digest);
    bench.options.build_args.insert("A".into(), "2".into());
    assert_ne!(bench.build("new", text).await.unwrap().digest, first.digest);
    bench.options.build_args.insert("TYPO".into(), "2".into());
    bench.build("new", text).await.unwrap();
    assert!(bench.events.contains(&"warning 1: the build argument TYPO is not declared by any ARG".to_owned()));
    bench.options.secrets.insert("big".into(), vec![0; 600 << 10]);
    assert!(bench.build("new", text).await.unwrap_err().to_string().contains("\"big\" has more than"));
}

#[tokio::test]
async fn mounts_are_there_for_one_step_and_leave_nothing() {
    let mut bench = Bench::new();
    bench.context("f", "x");
    let text = "FROM base\nRUN --mount=type=bind,source=f,target=/m/f --mount=type=cache,target=cache --mount=target=/all \
                --mount=type=tmpfs,target=/t,size=1k --network=none write out\n";
    bench.build("new", text).await.unwrap();
    let step = bench.runner.taken().remove(0);
    assert!(step.is_offline);
    let targets: Vec<&str> = step.mounts.iter().map(|m| m.target.as_str()).collect();
    assert_eq!(targets, ["/m/f", "/cache", "/all", "/t"]);
    assert_eq!(step.mounts[3].content, MountContent::Tmpfs { bytes: 1024 });
    let path = |index: usize| match &step.mounts[index].content {
        MountContent::Bind { path, .. } => path.clone(),
        other => panic!("{other:?}"),
    };
    // Copies are gone, the cache stays.
    assert!(!path(0).exists() && !path(2).exists() && path(1).is_dir());
    assert!(path(1).starts_with(bench.store.dir().join("caches")));
    assert_eq!(bench.unfinished(), 0);
    bench.build("new", text).await.unwrap();
    assert!(bench.runner.taken().is_empty());
    bench.context("f", "y");
    bench.build("new", text).await.unwrap();
    assert_eq!(
        path(1),
        match &bench.runner.taken()[0].mounts[1].content {
            MountContent::Bind { path, .. } => path.clone(),
            other => panic!("{other:?}"),
        }
    );
    for (mount, message) in [
        ("type=bind,source=nope,target=/x", "not in the context"),
        ("type=bind,source=../..,target=/x", "leads out of the context"),
        ("type=tmpfs,target=/", "target can't be"),
        ("type=tmpfs,target=/dev/../proc/x", "target can't be"),
        ("type=tmpfs,target=/etc/passwd/x", "can't mount at"),
        ("type=secret,id=x,required", "\"x\" is required"),
    ] {
        let error = bench.build("new", &format!("FROM base\nRUN --mount={mount} write x")).await.unwrap_err().to_string();
        assert!(error.starts_with("line 2: ") && error.contains(message), "{mount}: {error}");
        assert_eq!(bench.unfinished(), 0, "{mount}");
    }
}

#[tokio::test]
async fn configuration_is_recorded_as_docker_does() {
    let mut bench = Bench::new();
    bench.options.labels.insert("of".into(), "the command".into());
    let text = "FROM base\nSHELL [\"/bin/bash\", \"-c\"]\nCMD echo $A\nENTRYPOINT [\"e\"]\nEXPOSE 80 90-91/UDP\nVOLUME /a/../b c\n\
                STOPSIGNAL 9\nHEALTHCHECK --interval=1s CMD [\"x\"]\nMAINTAINER me\nENV A=$NONE\nUSER gem:1001\nWORKDIR new\nRUN write x\n";
    let config = bench.build("new", text).await.unwrap().config;
    assert_eq!((config.cmd, config.entrypoint), (vec!["/bin/bash".into(), "-c".into(), "echo $A".into()], vec!["e".to_owned()]));
    assert_eq!(config.exposed_ports.into_iter().collect::<Vec<_>>(), ["80/tcp", "90/udp", "91/udp"]);
    assert_eq!(config.volumes.into_iter().collect::<Vec<_>>(), ["/b", "/c"]);
    assert_eq!((config.stop_signal.as_deref(), config.labels["of"].as_str()), (Some("9"), "the command"));
    let check = config.healthcheck.unwrap();
    assert_eq!((check.test, check.interval), (vec!["CMD".to_owned(), "x".to_owned()], 1_000_000_000));
    assert_eq!(bench.runner.taken()[0].argv[0], "/bin/bash");
    let warnings: Vec<&String> = bench.events.iter().filter(|e| e.starts_with("warning")).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    for (step, message) in [
        ("EXPOSE 0", "EXPOSE \"0\""),
        ("EXPOSE 70000", "not valid"),
        ("EXPOSE 1-65535", "more than 1000 ports"),
        ("STOPSIGNAL x/y", "not valid"),
        ("ADD https://example.org/a.git /x", "not supported: ADD of the repository"),
        ("ADD http://127.0.0.1:1/a.tar /x", "not on the public internet"),
        ("ADD --checksum=$NONE https://example.org/a /x", "--checksum= is not valid"),
        ("COPY --chown=$NONE . /x", "not valid"),
    ] {
        let error = bench.build("new", &format!("FROM base\n{step}")).await.unwrap_err().to_string();
        assert!(error.starts_with("line 2: ") && error.contains(message), "{step}: {error}");
    }
}

#[tokio::test]
async fn a_user_is_a_name_or_a_number_with_or_without_a_group() {
    use std::os::unix::fs::MetadataExt;
    let mut bench = Bench::new();
    for (user, configured, ids) in [
        ("gem", "gem", (1000, 1001)),
        ("1000", "gem", (1000, 1001)),
        ("gem:1001", "gem", (1000, 1001)),
        ("gem:web", "gem:33", (1000, 33)),
        ("4242", "4242", (4242, 0)),
        ("4242:7", "4242:7", (4242, 7)),
        ("0:0", "root", (0, 0)),
    ] {
        let image = bench.build("new", &format!("FROM base\nUSER {user}\nWORKDIR /new\n")).await.unwrap();
        assert_eq!(image.config.user.as_deref(), Some(configured), "{user}");
        let meta = fs::metadata(image.layers[1].dir.join("new")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), ids, "{user}");
    }
}

#[tokio::test]
async fn tenants_share_no_steps_and_hold_their_layers() {
    let mut bench = Bench::new();
    let (one, two): (TenantId, TenantId) = ("one".parse().unwrap(), "two".parse().unwrap());
    let text = "FROM base\nRUN write a\nRUN --mount=type=cache,target=/c write b";
    // Not with the lock of another build, until a layer is sealed.
    let (built, layers) = bench.build_for(&one, text, u64::MAX).await;
    let image = built.unwrap();
    assert_eq!((image.owner.as_ref(), image.layers.len(), layers.len()), (Some(&one), 3, 2));
    assert!(!bench.store.dir().join("caches").exists(), "its caches go with the step");
    let (again, reused) = bench.build_for(&one, text, u64::MAX).await;
    assert_eq!((again.unwrap().digest, reused), (image.digest.clone(), layers.clone()));
    assert_eq!(bench.runner.taken().len(), 2, "the second build has no step to run");
    let (other, others) = bench.build_for(&two, text, u64::MAX).await;
    assert!(other.is_ok() && layers.iter().all(|layer| !others.contains(layer)));
    bench.build("new", text).await.unwrap();
    assert_eq!(bench.runner.taken().len(), 4);
    // The other's image is not found, its own goes before that of all.
    let own = bench.build_for(&one, "FROM new\nENV X=1", u64::MAX).await.0.unwrap();
    assert_eq!(own.layers[1].digest, image.layers[1].digest);

    let held = bench.store.hold(&layers[0]).unwrap();
    bench.store.remove_of(Some(&one), &"new".parse().unwrap(), &|_| false).unwrap();
    assert!(bench.store.layer_record(&layers[0]).is_some() && bench.store.layer_record(&layers[1]).is_none());
    drop(held);
    assert_eq!(bench.store.remove_interrupted(&|_| false).unwrap().layers, [layers[0].clone()]);
    assert!(bench.store.hold(&layers[0]).is_none());
    assert!(bench.store.layer_record(&others[0]).is_some(), "an image has it");
}

#[tokio::test]
async fn a_build_of_a_tenant_ends_at_its_bounds() {
    let mut bench = Bench::new();
    let tenant: TenantId = "one".parse().unwrap();
    bench.context("big", &"x".repeat(200_000));
    let (large, layers) = bench.build_for(&tenant, "FROM base\nRUN write a\nCOPY big /", 100_000).await;
    assert!(matches!(large, Err(ImageError::TooLarge { line: 3, .. })), "{large:?}");
    bench.store.remove_unused(layers, &|_| false).unwrap();
    let (refused, _) = bench.build_for(&tenant, "FROM debootstrap:trixie", u64::MAX).await;
    assert!(refused.unwrap_err().to_string().contains("by API"));

    // A step that hangs ends with its build.
    let (layers, (cancel, cancelled)) = (Mutex::default(), watch::channel(false));
    let hangs = Arc::clone(&bench.runner.hangs);
    let build =
        TenantBuild { tenant: &tenant, owner: None, max_bytes: u64::MAX, is_offline: true, cancel: cancelled, layers: &layers };
    let cancelling = async {
        hangs.notified().await;
        cancel.send_replace(true);
    };
    let (ended, ()) = tokio::join!(bench.build_as("new", "FROM base\nRUN hang\nRUN write a", true, Some(build)), cancelling);
    assert!(matches!(ended, Err(ImageError::Cancelled)), "{ended:?}");
    assert_eq!(bench.unfinished(), 0);
    assert_eq!(fs::read_dir(bench.store.dir().join("layers")).unwrap().count(), 1, "the base's");
}
