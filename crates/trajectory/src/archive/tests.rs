use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::json;

use super::upload::Uploaded;
use super::*;
use crate::{Annotations, Filter, Format, Intent, Origin, Outcome, OutcomeKind, Work};

/// Objects in memory, with faults.
#[derive(Default)]
struct FaultyObjects {
    objects: Mutex<BTreeMap<String, Bytes>>,
    is_down: AtomicBool,
    /// Puts that fail after the next ones.
    puts_left: Mutex<Option<usize>>,
    /// Puts that store other bytes.
    spoiled: AtomicUsize,
    puts: AtomicUsize,
}

impl FaultyObjects {
    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Bytes>> {
        self.objects.lock().unwrap()
    }

    fn check(&self, name: &str) -> Result<(), ObjectError> {
        if self.is_down.load(Ordering::Relaxed) { Err(ObjectError::new("reach", name, "connection refused")) } else { Ok(()) }
    }

    fn names(&self, folder: &str) -> Vec<String> {
        self.objects().keys().filter(|name| name.contains(folder)).cloned().collect()
    }

    fn change(&self, folder: &str, change: impl Fn(&[u8]) -> Vec<u8>) {
        for (_, bytes) in self.objects().iter_mut().filter(|(name, _)| name.contains(folder)) {
            *bytes = change(bytes).into();
        }
    }
}

#[async_trait]
impl Objects for FaultyObjects {
    fn place(&self) -> String {
        "memory".to_owned()
    }

    async fn put(&self, name: &str, content: Content) -> Result<(), ObjectError> {
        self.check(name)?;
        if let Some(left) = &mut *self.puts_left.lock().unwrap() {
            *left = left.checked_sub(1).ok_or_else(|| ObjectError::new("store", name, "the process was killed"))?;
        }
        let mut bytes = match content {
            Content::Bytes(bytes) => bytes.to_vec(),
            Content::File { mut file, bytes } => {
                let mut read = Vec::new();
                file.rewind().unwrap();
                file.take(bytes).read_to_end(&mut read).unwrap();
                read
            }
        };
        if self.spoiled.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
            bytes.pop();
        }
        self.puts.fetch_add(1, Ordering::Relaxed);
        self.objects().insert(name.to_owned(), bytes.into());
        Ok(())
    }

    async fn get(&self, name: &str) -> Result<Option<Pieces>, ObjectError> {
        self.check(name)?;
        let Some(bytes) = self.objects().get(name).cloned() else { return Ok(None) };
        let pieces: Vec<_> = bytes.chunks(1000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        Ok(Some(futures_util::stream::iter(pieces).boxed()))
    }

    async fn list(&self, folder: &str, after: Option<&str>, most: usize) -> Result<Vec<Object>, ObjectError> {
        self.check(folder)?;
        let folder = format!("{folder}/");
        let objects = self.objects();
        let found =
            objects.iter().filter(|(name, _)| name.starts_with(&folder) && after.is_none_or(|after| name.as_str() > after));
        Ok(found.take(most).map(|(name, bytes)| Object { name: name.clone(), bytes: bytes.len() as u64 }).collect())
    }

    async fn delete(&self, name: &str) -> Result<(), ObjectError> {
        self.check(name)?;
        self.objects().remove(name);
        Ok(())
    }
}

struct Node {
    recorder: Recorder,
    archive: Arc<Archive>,
    dir: tempfile::TempDir,
}

fn node_in(dir: tempfile::TempDir, objects: &Arc<FaultyObjects>, keep_local: Option<Duration>) -> Node {
    let recorder = Recorder::open(dir.path().join("trajectories"), Limits::default()).unwrap();
    let settings = Settings { keep_local, cache_dir: dir.path().join("fetched"), cache_bytes: 1 << 30 };
    let archive = Archive::new(Arc::clone(objects) as _, recorder.clone(), settings).unwrap();
    Node { recorder, archive: Arc::new(archive), dir }
}

/// The same node after a start. Reads of the last one may still hold its records.
async fn restarted(node: Node, objects: &Arc<FaultyObjects>) -> Node {
    let Node { recorder, archive, dir } = node;
    let keep_local = archive.settings.keep_local;
    drop((recorder, archive));
    while Recorder::open(dir.path().join("trajectories"), Limits::default()).is_err() {
        tokio::task::yield_now().await;
    }
    node_in(dir, objects, keep_local)
}

fn node(objects: &Arc<FaultyObjects>) -> Node {
    node_in(tempfile::tempdir().unwrap(), objects, None)
}

fn tenant() -> TenantId {
    TenantId::default_tenant()
}

fn key(trajectory: &str) -> TrajectoryKey {
    TrajectoryKey::new(&tenant(), trajectory).unwrap()
}

impl Node {
    fn begin(&self, trajectory: &str) -> crate::OpenStep {
        let intent = Intent {
            tenant: tenant(),
            trajectory: trajectory.to_owned(),
            sandbox_name: "box".to_owned(),
            dialect: "aio",
            action: "POST /v1/bash/exec".to_owned(),
            arguments: Some(json!({ "command": "true" })),
            origin: Origin::Agent,
            client: None,
            request_id: String::new(),
            work: None::<Work>,
        };
        self.recorder.begin(intent).unwrap()
    }

    fn record(&self, trajectory: &str, body: &[u8]) {
        let mut step = self.begin(trajectory);
        step.response_tap().feed(body);
        step.finish(Outcome { status: Some(200), result: OutcomeKind::Ok, error: None }).unwrap();
    }

    fn finished(&self, trajectory: &str, bodies: &[&[u8]]) {
        bodies.iter().for_each(|body| self.record(trajectory, body));
        self.recorder.close_trajectory(&tenant(), trajectory);
    }

    async fn upload(&self, trajectory: &str) -> Result<Uploaded, TrajectoryError> {
        self.archive.upload(&key(trajectory)).await
    }

    async fn open(&self, trajectory: &str) -> Recorder {
        self.archive.open(&tenant(), trajectory).await.unwrap().unwrap()
    }

    async fn listed(&self, after: Option<&(i64, String)>, most: usize) -> Listed {
        self.archive.list(&tenant(), after, most, |_| true).await.unwrap()
    }

    /// Runs the archive until something is as it should be.
    async fn run_until(&self, is_done: impl Fn() -> bool) {
        let running = tokio::spawn(Arc::clone(&self.archive).run(|_| false));
        let done = async {
            while !is_done() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(60), done).await.expect("the archive does nothing");
        running.abort();
        let _ = running.await;
    }
}

fn exported(recorder: &Recorder, trajectory: &str) -> String {
    let mut out = Vec::new();
    recorder.export(&tenant(), trajectory, (true, &Filter::default()), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Reads wait for objects, so they are not for the threads of the runtime.
async fn read<T: Send + 'static>(recorder: &Recorder, read: impl FnOnce(&Recorder) -> T + Send + 'static) -> T {
    let recorder = recorder.clone();
    tokio::task::spawn_blocking(move || read(&recorder)).await.unwrap()
}

#[tokio::test]
async fn an_archived_trajectory_reads_as_on_its_node() {
    let objects = Arc::<FaultyObjects>::default();
    let here = node(&objects);
    let binary: Vec<u8> = (0..100_000u32).map(|n| (n % 255) as u8).collect();
    here.finished("one", &[b"{\"x\":1}", &binary, b"text", &[0xff; 3000]]);
    assert_eq!(here.upload("one").await.unwrap(), Uploaded::Done);
    assert!(here.recorder.list(&tenant()).unwrap()[0].archived, "the list says so");
    assert_eq!(objects.names("/bodies/").len(), 2);

    let there = node(&objects);
    let archived = there.open("one").await;
    let wanted = exported(&here.recorder, "one");
    assert_eq!(read(&archived, |archived| exported(archived, "one")).await, wanted);
    for format in Format::ALL {
        let of = move |recorder: &Recorder| {
            let mut out = Vec::new();
            recorder.export_as(&tenant(), "one", (format, &Filter::default(), &Annotations::default()), &mut out).unwrap();
            out
        };
        assert_eq!(read(&archived, of).await, of(&here.recorder), "{}", format.name());
    }
    let found = read(&archived, |archived| archived.verify(&tenant(), "one").unwrap()).await;
    assert!(found.problems.is_empty() && found.steps == 4 && found.blobs == 2, "{found:?}");
    let digest = blake3::hash(&binary).to_string();
    let owned = digest.clone();
    read(&archived, move |archived| archived.check_blob(&tenant(), "one", &owned).unwrap()).await;
    let mut file = read(&archived, move |archived| archived.read_blob(&digest).unwrap()).await;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert!(bytes == binary);
    let mut follow = archived.follow(&tenant(), "one", 0, None).unwrap();
    assert_eq!(follow.read().unwrap().len(), 4);
    assert_eq!(follow.news().await, crate::News::End);
    // Another trajectory and another tenant have nothing of it.
    assert!(archived.steps(&tenant(), "two", 0, 1).is_err());
    assert!(there.archive.open(&"other".parse().unwrap(), "one").await.unwrap().is_none());
    assert!(there.archive.open(&tenant(), "two").await.unwrap().is_none());
    assert!(there.archive.open(&tenant(), "../one").await.is_err());
    // Nothing is fetched twice, and no body stays.
    objects.change("/logs/", |_| b"changed".to_vec());
    there.open("one").await;
    assert_eq!(fs::read_dir(there.dir.path().join("fetched")).unwrap().count(), 1);
}

#[tokio::test]
async fn damaged_objects_are_named() {
    let objects = Arc::<FaultyObjects>::default();
    let here = node(&objects);
    here.finished("one", &[&[0xff; 3000]]);
    here.upload("one").await.unwrap();
    type Damage = (&'static str, fn(&[u8]) -> Vec<u8>);
    let damages: [Damage; 2] =
        [("bytes", |bytes| bytes[..bytes.len() - 1].to_vec()), ("BLAKE3", |bytes| [bytes, b" "].concat()[1..].to_vec())];
    for (wanted, damage) in damages {
        let whole = objects.objects().clone();
        objects.change("/logs/", damage);
        let there = node(&objects);
        let refused = there.archive.open(&tenant(), "one").await.err().unwrap();
        assert!(
            matches!(&refused, TrajectoryError::DamagedObject { name, what } if name.contains("/logs/one/") && what.contains(wanted)),
            "{refused}"
        );
        assert_eq!(fs::read_dir(there.dir.path().join("fetched")).unwrap().count(), 0);
        *objects.objects() = whole;
        objects.change("/bodies/", damage);
        let archived = there.open("one").await;
        let found = read(&archived, |archived| archived.verify(&tenant(), "one").unwrap()).await;
        assert!(found.problems.len() == 1 && found.problems[0].what.contains("damaged"), "{found:?}");
        objects.change("/bodies/", |_| vec![0xff; 3000]);
    }
    objects.objects().retain(|name, _| !name.contains("/logs/") || name.is_empty());
    assert!(node(&objects).archive.open(&tenant(), "one").await.unwrap().is_none());
    objects.change("/index/", |_| b"{".to_vec());
    assert_eq!(node(&objects).listed(None, 10).await.summaries, []);
}

#[tokio::test]
async fn what_was_stored_wrongly_is_stored_again_and_otherwise_an_error() {
    let objects = Arc::<FaultyObjects>::default();
    let here = node(&objects);
    here.finished("one", &[&[0xff; 3000]]);
    objects.spoiled.store(1, Ordering::Relaxed);
    assert_eq!(here.upload("one").await.unwrap(), Uploaded::Done);
    here.finished("two", &[b"x"]);
    objects.spoiled.store(2, Ordering::Relaxed);
    let refused = here.upload("two").await.unwrap_err();
    assert!(matches!(&refused, TrajectoryError::DamagedObject { name, .. } if name.contains("/logs/two/")), "{refused}");
    assert!(!here.recorder.list(&tenant()).unwrap().iter().any(|one| one.trajectory == "two" && one.archived));
    assert_eq!(objects.names("/index/").len(), 1, "only a verified trajectory is in the index");
    assert_eq!(here.upload("two").await.unwrap(), Uploaded::Done);
}

#[tokio::test]
async fn an_upload_that_was_killed_goes_on_where_it_was() {
    let objects = Arc::<FaultyObjects>::default();
    let mut here = node(&objects);
    let bodies: Vec<Vec<u8>> = (0..10u8).map(|n| vec![0xf0 | n; 2000]).collect();
    here.finished("one", &bodies.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let total = 1 + bodies.len() + 1;
    for left in 0..total {
        *objects.puts_left.lock().unwrap() = Some(1);
        assert!(here.upload("one").await.is_err() == (left + 1 < total), "{left}");
        // A server that was killed kept nothing in memory.
        here = restarted(here, &objects).await;
    }
    assert_eq!(objects.puts.load(Ordering::Relaxed), total, "nothing is uploaded twice");
    *objects.puts_left.lock().unwrap() = Some(0);
    assert_eq!(here.upload("one").await.unwrap(), Uploaded::Done);
    assert_eq!(node(&objects).listed(None, 10).await.summaries.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_task_finds_what_is_not_archived_and_repeats_what_fails() {
    let objects = Arc::<FaultyObjects>::default();
    let here = node(&objects);
    for n in 0..5 {
        here.finished(&format!("t{n}"), &[b"x"]);
    }
    here.record("open", b"x");
    objects.is_down.store(true, Ordering::Relaxed);
    here.run_until(|| here.archive.counters().failed > 3).await;
    let problem = here.archive.problem().unwrap();
    assert!(problem.contains("memory") && problem.contains("connection refused"), "{problem}");
    assert_eq!(objects.puts.load(Ordering::Relaxed), 0);
    objects.is_down.store(false, Ordering::Relaxed);

    // A later start finds them on the disk.
    let here = restarted(here, &objects).await;
    let held = here.begin("busy");
    here.recorder.close_trajectory(&tenant(), "busy");
    here.run_until(|| objects.names("/index/").len() == 5).await;
    assert_eq!(here.archive.problem(), None);
    held.finish(Outcome { status: Some(200), result: OutcomeKind::Ok, error: None }).unwrap();
    let names = objects.names("/index/");
    assert!(names.iter().all(|name| name.contains(".t")), "{names:?}");
    let receipts = here.recorder.list(&tenant()).unwrap().into_iter().filter(|one| one.archived).count();
    assert_eq!(receipts, 5);
}

#[tokio::test]
async fn ends_are_archived_when_they_are_reported() {
    let objects = Arc::<FaultyObjects>::default();
    let here = node(&objects);
    let running = tokio::spawn(Arc::clone(&here.archive).run(|_| false));
    // After the look at the start.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let held = here.begin("busy");
    here.finished("busy", &[b"x"]);
    here.finished("one", &[b"x"]);
    let wait = async |wanted: usize| {
        let there = async {
            while objects.names("/index/").len() < wanted {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(30), there).await.unwrap();
    };
    wait(1).await;
    assert!(objects.names("/index/")[0].ends_with(".one"), "a call of the other is under way");
    held.finish(Outcome { status: Some(200), result: OutcomeKind::Ok, error: None }).unwrap();
    wait(2).await;
    running.abort();
}

#[tokio::test]
async fn local_logs_are_removed_only_when_the_archive_has_them() {
    let objects = Arc::<FaultyObjects>::default();
    let here = node_in(tempfile::tempdir().unwrap(), &objects, Some(Duration::ZERO));
    here.finished("one", &[b"x"]);
    here.finished("two", &[b"x"]);
    here.record("live", b"x");
    for one in ["one", "two", "live"] {
        here.upload(one).await.unwrap();
    }
    let here = restarted(here, &objects).await;
    // Somebody removed it from the archive: it is uploaded again, and not lost.
    objects.objects().retain(|name, _| !name.ends_with(".two"));
    here.run_until(|| here.archive.counters().dropped == 1 && objects.names("/index/").len() == 3).await;
    let left: Vec<String> = here.recorder.list(&tenant()).unwrap().into_iter().map(|one| one.trajectory).collect();
    assert!(left.contains(&"two".to_owned()) && left.contains(&"live".to_owned()) && left.len() == 2, "{left:?}");
    assert_eq!(here.open("one").await.steps(&tenant(), "one", 0, 10).unwrap().len(), 1);
    assert!(!here.dir.path().join("trajectories/logs/default/one.archived").exists());
}

#[tokio::test]
async fn a_continued_trajectory_replaces_what_was_archived_and_an_older_copy_does_not() {
    let objects = Arc::<FaultyObjects>::default();
    let here = node(&objects);
    here.finished("w-solver", &[b"x"]);
    here.upload("w-solver").await.unwrap();
    // The data directory was copied: two nodes have the same trajectory.
    let copied = tempfile::tempdir().unwrap();
    let log = "trajectories/logs/default";
    fs::create_dir_all(copied.path().join(log)).unwrap();
    fs::copy(here.dir.path().join(log).join("w-solver.jsonl"), copied.path().join(log).join("w-solver.jsonl")).unwrap();
    let copy = node_in(copied, &objects, None);
    let puts = objects.puts.load(Ordering::Relaxed);
    assert_eq!(copy.upload("w-solver").await.unwrap(), Uploaded::Done);
    assert_eq!(objects.puts.load(Ordering::Relaxed), puts, "it is there already");

    here.record("w-solver", b"y");
    assert!(!here.recorder.list(&tenant()).unwrap()[0].archived, "its receipt is of the shorter log");
    assert_eq!(here.upload("w-solver").await.unwrap(), Uploaded::Done);
    assert_eq!(here.open("w-solver").await.steps(&tenant(), "w-solver", 0, 10).unwrap().len(), 2);
    assert_eq!(objects.names("/logs/").len(), 1, "the shorter log is gone");
    fs::remove_file(copy.dir.path().join(log).join("w-solver.archived")).unwrap();
    assert_eq!(copy.upload("w-solver").await.unwrap(), Uploaded::Left);
    assert_eq!(copy.open("w-solver").await.steps(&tenant(), "w-solver", 0, 10).unwrap().len(), 2);

    // The same worker on another node is another trajectory with the same id: the newest is read, and a list has both.
    let other = node(&objects);
    other.finished("w-solver", &[b"a", b"b", b"c"]);
    other.upload("w-solver").await.unwrap();
    assert_eq!(here.open("w-solver").await.steps(&tenant(), "w-solver", 0, 10).unwrap().len(), 3);
    assert_eq!(here.listed(None, 10).await.summaries.iter().map(|one| one.steps).collect::<Vec<_>>(), [3, 2]);
}

#[tokio::test]
async fn lists_are_read_in_pages_from_the_newest() {
    let objects = Arc::<FaultyObjects>::default();
    let here = node(&objects);
    for n in 0..25 {
        here.finished(&format!("t{n:02}"), &[b"x"]);
        here.upload(&format!("t{n:02}")).await.unwrap();
    }
    let there = node(&objects);
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let listed = there.listed(after.as_ref(), 7).await;
        seen.extend(listed.summaries.into_iter().map(|one| one.trajectory));
        after = listed.until;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, (0..25).rev().map(|n| format!("t{n:02}")).collect::<Vec<_>>());
    let few = there.archive.list(&tenant(), None, 2, |one| one.trajectory.ends_with('3')).await.unwrap();
    assert_eq!(few.summaries.iter().map(|one| one.trajectory.as_str()).collect::<Vec<_>>(), ["t23", "t13"]);
    assert!(few.summaries.iter().all(|one| one.archived && one.ended && one.steps == 1));
    assert_eq!(there.archive.list(&"other".parse().unwrap(), None, 10, |_| true).await.unwrap().summaries, []);
    objects.is_down.store(true, Ordering::Relaxed);
    let refused = there.archive.list(&tenant(), None, 2, |_| true).await.unwrap_err();
    assert!(matches!(&refused, TrajectoryError::Archive { place, .. } if place == "memory"), "{refused}");
}

#[tokio::test]
async fn lost_bodies_and_empty_logs_do_not_stop_an_upload() {
    let objects = Arc::<FaultyObjects>::default();
    let here = node(&objects);
    here.finished("one", &[&[0xff; 3000], &[0xfe; 3000]]);
    let lost = blake3::hash(&[0xff; 3000]).to_string();
    fs::remove_file(here.dir.path().join("trajectories/blobs").join(&lost[..2]).join(&lost[2..])).unwrap();
    assert_eq!(here.upload("one").await.unwrap(), Uploaded::Done);
    let name = objects.names("/index/").remove(0);
    let entry: Entry = serde_json::from_slice(&objects.objects()[&name]).unwrap();
    assert_eq!((entry.bodies, entry.lost_bodies), (1, 1));
    fs::write(here.dir.path().join("trajectories/logs/default/empty.jsonl"), b"").unwrap();
    assert_eq!(here.upload("empty").await.unwrap(), Uploaded::Left);
    let missing = here.upload("missing").await.unwrap_err();
    assert!(matches!(missing, TrajectoryError::NoTrajectory { .. }), "{missing}");
}

#[test]
fn fetched_logs_are_removed_from_the_oldest_on() {
    let dir = tempfile::tempdir().unwrap();
    let of = |n: u8| dir.path().join(blake3::hash(&[n]).to_string());
    for n in 0..5 {
        let file = File::create(of(n)).unwrap();
        file.set_len(100).unwrap();
        file.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(n.into()))).unwrap();
    }
    File::create(dir.path().join("new-1-1")).unwrap();
    evict(dir.path(), 250, &of(0));
    assert_eq!((0..5).map(|n| of(n).exists()).collect::<Vec<_>>(), [true, false, false, false, true]);
    assert!(dir.path().join("new-1-1").exists());
}
