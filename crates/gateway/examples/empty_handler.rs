//! The floor of `cargo xtask bench --only agentflow`: an empty handler that reads the request's body and answers with a constant
//! of the same shape. Prints its port, and exits when its standard input ends.

use axum::Router;
use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::routing::post;

const ANSWER: &str = r#"{"code":0,"message":"success","data":{"inputs":{"worker_id":"bench-0"},"result":{"databases":[]}},"meta":{"execution_time_ms":0.012345,"resource_type":"text2sql","session_id":"text2sql_bench-0_001_00000000","tool":"text2sql:list_databases","trace_id":"00000000-0000-4000-8000-000000000000"}}"#;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let answer = |_body: Bytes| async { ([(CONTENT_TYPE, "application/json")], ANSWER) };
    let app = Router::new().route("/api/v1/execute", post(answer));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    println!("{}", listener.local_addr()?.port());
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    axum::serve(listener, app).await
}
