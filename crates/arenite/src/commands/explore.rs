//! `explore`: searches a tree of actions, with a sandbox for each branch.

use std::io::Write;
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arenite_rollout::{ActionResult, Bounds, Branches, Node, Tree};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::io::AsyncWriteExt;
use tokio_util::sync::CancellationToken;

use super::exec;
use crate::cli::ExploreArgs;
use crate::client::{Client, encoded};
use crate::failure::{Attempt, Failure, Outcome};
use crate::output;

const SANDBOXES: &str = "/api/v2/sandboxes";
const SNAPSHOTS: &str = "/api/v2/snapshots";
const GROUPS: &str = "/api/v2/groups";
/// Largest plan, in bytes.
const MAX_PLAN: u64 = 4 << 20;
/// What a node keeps of an action's output, in bytes.
const MAX_OUTPUT: usize = 4 << 10;
/// Most that `propose` may print, in bytes.
const MAX_PROPOSALS: usize = 1 << 20;
/// If this command is killed, its sandboxes end after this time, in seconds.
const LEASE: u64 = 60;
const INTERRUPTED: u8 = 130;

/// The file of a search.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Plan {
    #[serde(default)]
    setup: Vec<String>,
    #[serde(default)]
    actions: Vec<String>,
    /// A command on this machine.
    propose: Option<String>,
    score: Option<String>,
    goal: Option<f64>,
    /// Of each command.
    timeout_seconds: Option<f64>,
    #[serde(default)]
    sandbox: Map<String, Value>,
}

impl Plan {
    fn read(path: &Path) -> Result<Self, Failure> {
        let failed = || format!("could not read {}", path.display());
        let length = std::fs::metadata(path).attempt(failed)?.len();
        if length > MAX_PLAN {
            return Err(
                Failure::new(format!("{} has {length} bytes, and at most {MAX_PLAN} are read", path.display())).exit_code(2)
            );
        }
        let text = std::fs::read_to_string(path).attempt(failed)?;
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        let plan: Result<Self, String> = match is_json {
            true => serde_json::from_str(&text).map_err(|error| error.to_string()),
            false => toml::from_str(&text).map_err(|error| error.to_string()),
        };
        let refused = |why: String| {
            Failure::new(format!("{} is not a plan: {}", path.display(), why.trim()))
                .hint("arenite explore --help describes it")
                .exit_code(2)
        };
        let plan = plan.map_err(refused)?;
        match (plan.actions.is_empty(), &plan.propose) {
            (true, None) => Err(refused("it has neither actions nor propose".to_owned())),
            (false, Some(_)) => Err(refused("it has both actions and propose".to_owned())),
            _ if plan.goal.is_some() && plan.score.is_none() => Err(refused("it has a goal, and no score".to_owned())),
            _ => Ok(plan),
        }
    }
}

/// The search of one plan on a server.
struct Search {
    client: Client,
    plan: Plan,
    /// Names its group and snapshots, and is a label of its sandboxes.
    id: String,
    replay: bool,
    snapshots: AtomicUsize,
}

/// What a child starts as.
enum State {
    Snapshot(String),
    /// All actions from the start.
    Actions(Vec<String>),
}

pub(crate) async fn explore(args: ExploreArgs) -> Outcome {
    let plan = Plan::read(&args.plan)?;
    let client = Client::connect_to(&args.server)?;
    let mut random = [0u8; 4];
    getrandom::fill(&mut random).map_err(|error| Failure::new(format!("no random bytes: {error}")))?;
    let id = format!("explore-{:08x}", u32::from_ne_bytes(random));
    let bounds = Bounds {
        depth: args.depth as usize,
        breadth: args.breadth as usize,
        beam: args.beam.map(|beam| beam as usize),
        parallel: args.parallel as usize,
        goal: plan.goal,
    };
    let search = Search { client, plan, id, replay: args.replay, snapshots: AtomicUsize::new(0) };
    // Deleting the group deletes the sandboxes that are left, also if this command is killed.
    search.client.post::<Value>(GROUPS, &json!({ "name": search.id, "ttl_seconds": LEASE })).await?;
    let ended = CancellationToken::new();
    let renewing = tokio::spawn(renew(search.client.clone(), search.id.clone(), ended.clone()));
    let found = tokio::select! {
        found = arenite_rollout::explore(&search, bounds) => Some(found),
        _ = tokio::signal::ctrl_c() => None,
    };
    ended.cancel();
    // It only waits.
    let _ = renewing.await;
    search.clean_up().await;
    let Some(found) = found else {
        eprintln!("stopped; its sandboxes and snapshots are removed");
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let tree = found?;
    if let Some(path) = &args.out {
        write_nodes(path, &tree).attempt(|| format!("could not write {}", path.display()))?;
    }
    match args.format.json {
        true => output::json(&json!(tree)),
        false => show(&tree),
    }
    Ok(if bounds.goal.is_none() || tree.solved { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn renew(client: Client, group: String, ended: CancellationToken) {
    let path = format!("{GROUPS}/{group}/renew");
    loop {
        tokio::select! {
            () = ended.cancelled() => return,
            () = tokio::time::sleep(Duration::from_secs(LEASE / 4)) => {}
        }
        if let Err(error) = client.post::<Value>(&path, &json!({})).await {
            eprintln!("warning: the lease of the sandboxes could not be renewed: {error}");
        }
    }
}

fn write_nodes(path: &Path, tree: &Tree) -> std::io::Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    for node in &tree.nodes {
        serde_json::to_writer(&mut file, node)?;
        file.write_all(b"\n")?;
    }
    file.flush()
}

fn show(tree: &Tree) {
    let Some(best) = &tree.best else {
        output::line(format!("{} nodes, and none has a score", tree.nodes.len()));
        return;
    };
    let mut rows = output::table(&["node", "score", "exit", "action"]);
    for node in tree.path(best) {
        rows.add_row(vec![
            node.id.clone(),
            node.score.map_or_else(|| "-".to_owned(), |score| score.to_string()),
            node.exit_code.map_or_else(|| "-".to_owned(), |code| code.to_string()),
            output::harmless(node.action.as_deref().unwrap_or_default()),
        ]);
    }
    output::rows(&rows);
    let failed = tree.nodes.iter().filter(|node| node.error.is_some()).count();
    eprintln!(
        "the best way of {} nodes, of which {failed} failed{}",
        tree.nodes.len(),
        if tree.solved { "; solved" } else { "" }
    );
}

impl Search {
    async fn create(&self, branch: &str, snapshot: Option<&str>) -> Result<String, Failure> {
        let mut fields = self.plan.sandbox.clone();
        if let Some(snapshot) = snapshot {
            fields.remove("image");
            fields.insert("snapshot".to_owned(), json!(snapshot));
        }
        fields.insert("group".to_owned(), json!(self.id));
        if let Some(labels) = fields.entry("labels").or_insert_with(|| json!({})).as_object_mut() {
            labels.extend([("explore".to_owned(), json!(self.id)), ("branch".to_owned(), json!(branch))]);
        }
        let created: Value = self.client.post(SANDBOXES, &fields).await?;
        let name = created["name"].as_str().ok_or_else(|| Failure::new("the server answered a create without a name"))?;
        Ok(name.to_owned())
    }

    /// Deletes a sandbox; the group's deletion repeats it.
    async fn delete(&self, sandbox: &str) {
        if let Err(error) = self.client.delete(&format!("{SANDBOXES}/{}", encoded(sandbox))).await {
            eprintln!("warning: {error}");
        }
    }

    async fn run(&self, sandbox: &str, command: &str) -> Result<Value, Failure> {
        let request = json!({ "command": command, "hard_timeout": self.plan.timeout_seconds });
        exec::again(&self.client, sandbox, &request, "").await
    }

    /// Runs an action, if there is one, and the score.
    async fn act(&self, sandbox: &str, action: Option<&str>) -> Result<ActionResult, Failure> {
        let mut result = ActionResult { sandbox: Some(sandbox.to_owned()), ..ActionResult::default() };
        if let Some(action) = action {
            let ended = self.run(sandbox, action).await?;
            result.exit_code = ended["exit_code"].as_i64();
            result.output = tail(&ended);
        }
        if let Some(score) = &self.plan.score {
            let ended = self.run(sandbox, score).await?;
            let printed = ended["stdout"].as_str().unwrap_or_default();
            let last = printed.trim().lines().next_back().unwrap_or_default();
            match last.trim().parse::<f64>() {
                Ok(score) if score.is_finite() => result.score = Some(score),
                _ => result.error = Some(format!("the score's last line is not a number: {last:?}; {}", tail(&ended))),
            }
        }
        Ok(result)
    }

    async fn prepare(&self, sandbox: &str) -> Result<(), Failure> {
        for command in &self.plan.setup {
            let ended = self.run(sandbox, command).await?;
            if ended["exit_code"].as_i64() != Some(0) {
                return Err(Failure::new(format!("the setup command {command:?} failed: {}", tail(&ended))));
            }
        }
        Ok(())
    }

    async fn snapshot(&self, sandbox: &str) -> Result<String, Failure> {
        let name = format!("{}-{}", self.id, self.snapshots.fetch_add(1, Ordering::Relaxed));
        let request = json!({ "name": name, "sandbox": sandbox, "labels": { "explore": self.id } });
        self.client.post::<Value>(SNAPSHOTS, &request).await?;
        Ok(name)
    }

    /// Removes what an interrupted search left.
    async fn clean_up(&self) {
        if let Err(error) = self.client.delete(&format!("{GROUPS}/{}", self.id)).await {
            eprintln!("warning: {error}");
        }
        let left: Value = self.client.get_all(SNAPSHOTS, "snapshots").await.unwrap_or_default();
        for snapshot in left["snapshots"].as_array().into_iter().flatten() {
            if snapshot["labels"]["explore"] == json!(self.id)
                && let Some(name) = snapshot["name"].as_str()
            {
                self.release(State::Snapshot(name.to_owned())).await;
            }
        }
    }
}

/// The end of a command's output.
fn tail(ended: &Value) -> String {
    let text = |name: &str| ended[name].as_str().unwrap_or_default();
    let all = format!("{}{}", text("stdout"), text("stderr"));
    let start = all.ceil_char_boundary(all.len().saturating_sub(MAX_OUTPUT));
    all[start..].trim_end().to_owned()
}

impl Branches for Search {
    type State = State;
    type Error = Failure;

    async fn root(&self) -> Result<(ActionResult, State), Failure> {
        let sandbox = self.create("root", None).await?;
        self.prepare(&sandbox).await?;
        let result = self.act(&sandbox, None).await?;
        let state = match self.replay {
            true => State::Actions(Vec::new()),
            false => State::Snapshot(self.snapshot(&sandbox).await?),
        };
        self.delete(&sandbox).await;
        Ok((result, state))
    }

    async fn propose(&self, path: &[&Node], most: usize) -> Result<Vec<String>, Failure> {
        let Some(command) = &self.plan.propose else { return Ok(self.plan.actions.clone()) };
        let way: Vec<Value> = path
            .iter()
            .map(|node| json!({ "action": node.action, "output": node.output, "exit_code": node.exit_code, "score": node.score }))
            .collect();
        let failed = || format!("could not run {command:?}");
        let mut child = tokio::process::Command::new("sh")
            .args(["-c", command])
            .env("ARENITE_SERVER", self.client.server())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .attempt(failed)?;
        let request = format!("{}\n", json!({ "breadth": most, "path": way }));
        if let Some(mut stdin) = child.stdin.take() {
            // It may leave it unread.
            tokio::spawn(async move { drop(stdin.write_all(request.as_bytes()).await) });
        }
        let ended = child.wait_with_output().await.attempt(failed)?;
        if !ended.status.success() || ended.stdout.len() > MAX_PROPOSALS {
            return Err(Failure::new(format!("{command:?} proposed nothing: {}, {} bytes", ended.status, ended.stdout.len())));
        }
        let text = String::from_utf8_lossy(&ended.stdout);
        Ok(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
    }

    async fn expand(
        &self,
        parent: &State,
        id: &str,
        path: &[&str],
        keep: bool,
    ) -> Result<(ActionResult, Option<State>), Failure> {
        let action = path.last().copied();
        let sandbox = match parent {
            State::Snapshot(snapshot) => self.create(id, Some(snapshot)).await?,
            State::Actions(_) => self.create(id, None).await?,
        };
        let expanded = async {
            if let State::Actions(before) = parent {
                self.prepare(&sandbox).await?;
                for action in before {
                    self.run(&sandbox, action).await?;
                }
            }
            let result = self.act(&sandbox, action).await?;
            let state = match (keep, self.replay) {
                (false, _) => None,
                (true, false) => Some(State::Snapshot(self.snapshot(&sandbox).await?)),
                (true, true) => Some(State::Actions(path.iter().map(|action| (*action).to_owned()).collect())),
            };
            Ok((result, state))
        };
        let expanded = expanded.await;
        self.delete(&sandbox).await;
        expanded
    }

    async fn release(&self, state: State) {
        if let State::Snapshot(name) = state
            && let Err(error) = self.client.delete(&format!("{SNAPSHOTS}/{name}")).await
        {
            eprintln!("warning: {error}");
        }
    }

    fn progress(&self, depth: usize, nodes: usize, best: Option<f64>) {
        let best = best.map_or_else(String::new, |best| format!("; the best score is {best}"));
        eprintln!("level {depth}: {nodes} nodes{best}");
    }
}
