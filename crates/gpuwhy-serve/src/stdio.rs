// SPDX-License-Identifier: Apache-2.0
//! MCP on stdin and stdout: one JSON-RPC message per line.
//!
//! The SDK's own transport ignores lines it cannot parse. This one answers them with an error and reads on.

use crate::Error;
use crate::mcp::Server;
use rmcp::model::{ErrorData, JsonRpcError};
use rmcp::service::{RoleServer, RxJsonRpcMessage, ServiceExt, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

/// Maximum length of a message, bytes.
const LONGEST: usize = 1 << 20;

/// Serves the client until it closes its end.
pub(crate) async fn serve(server: Server) -> Result<(), Error> {
    let interrupted = crate::http::interrupted()?;
    tokio::select! {
        ended = talk(server) => ended,
        () = interrupted => Ok(()),
    }
}

async fn talk(server: Server) -> Result<(), Error> {
    talk_on(server, Lines::new(BufReader::new(tokio::io::stdin()), tokio::io::stdout())).await
}

async fn talk_on<R, W>(server: Server, lines: Lines<R, W>) -> Result<(), Error>
where
    R: AsyncBufRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let service = match server.serve(lines).await {
        Ok(service) => service,
        // A client that leaves before the handshake is not an error.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(wrong) => return Err(Error::Protocol(wrong.to_string())),
    };
    service.waiting().await.map(|_| ()).map_err(|wrong| Error::Protocol(wrong.to_string()))
}

/// Id of the `ping` sent after the given lines; no client uses it.
const LAST: &str = "gpuwhy-last";

/// How long to wait for replies that may never come, because a later line cancelled the request.
const SILENCE: Duration = Duration::from_secs(2);

/// The answers to these lines and to a `ping` after them.
pub(crate) async fn answer(server: Server, mut lines: Vec<u8>) -> Result<Vec<u8>, Error> {
    let is_request = |line: &[u8]| {
        let line = serde_json::from_slice::<serde_json::Value>(line);
        line.is_ok_and(|line| line.get("id").is_some() && line.get("method").is_some())
    };
    let requests = 1 + lines.split(|byte| *byte == b'\n').filter(|line| is_request(line)).count();
    lines.extend(format!("\n{{\"jsonrpc\":\"2.0\",\"id\":\"{LAST}\",\"method\":\"ping\"}}\n").into_bytes());
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let (input, output) = tokio::io::split(theirs);
    let serving = tokio::spawn(talk_on(server, Lines::new(BufReader::new(input), output)));
    let (replies, mut asking) = tokio::io::split(ours);
    let asked = tokio::spawn(async move {
        // A server that closes the connection stops reading; its earlier answers count.
        let _ = asking.write_all(&lines).await;
        asking
    });
    let (mut replies, mut said) = (BufReader::new(replies), Vec::new());
    let (mut replied, mut saw_last) = (0, false);
    while !saw_last || replied < requests {
        let from = said.len();
        let reading = replies.read_until(b'\n', &mut said);
        let read = match tokio::time::timeout(if saw_last { SILENCE } else { crate::work::LIMIT }, reading).await {
            Ok(read) => read?,
            Err(_) if saw_last => break,
            Err(_) => return Err(Error::Protocol("the server stopped answering".into())),
        };
        if read == 0 {
            break;
        }
        replied += 1;
        saw_last |= serde_json::from_slice(&said[from..]).is_ok_and(|line: serde_json::Value| line["id"] == LAST);
    }
    asked.abort();
    drop(asked.await);
    drop(replies);
    serving.await.unwrap_or_else(|fault| Err(Error::Protocol(fault.to_string())))?;
    Ok(said)
}

/// Messages as lines.
struct Lines<R, W> {
    input: R,
    /// The part of the current line read so far; kept if reading is cancelled.
    line: Vec<u8>,
    /// The current line is too long and is skipped.
    too_long: bool,
    output: Arc<Mutex<W>>,
    /// A task that sends an error for an invalid line; it continues if waiting for it is cancelled.
    sending_error: Option<JoinHandle<()>>,
}

impl<R: AsyncBufRead + Unpin, W: AsyncWrite + Unpin> Lines<R, W> {
    fn new(input: R, output: W) -> Self {
        Self { input, line: Vec::new(), too_long: false, output: Arc::new(Mutex::new(output)), sending_error: None }
    }

    /// Reads one line; `None` at the end of the input. Cancel-safe: no input is lost.
    async fn next(&mut self) -> Option<Result<Vec<u8>, ErrorData>> {
        loop {
            let (taken, whole) = {
                let ready = self.input.fill_buf().await.ok()?;
                if ready.is_empty() {
                    return None;
                }
                let end = ready.iter().position(|byte| *byte == b'\n');
                let taken = end.map_or(ready.len(), |end| end + 1);
                if !self.too_long && self.line.len() + taken <= LONGEST {
                    self.line.extend_from_slice(&ready[..taken]);
                } else {
                    self.too_long = true;
                    self.line = Vec::new();
                }
                (taken, end.is_some())
            };
            self.input.consume(taken);
            if whole {
                let line = std::mem::take(&mut self.line);
                if std::mem::take(&mut self.too_long) {
                    let message = format!("message too long: at most {LONGEST} bytes");
                    return Some(Err(ErrorData::invalid_request(message, None)));
                }
                return Some(Ok(line));
            }
        }
    }
}

/// Parses a line; the error is the reply to send, with the id of the request if known.
fn read(line: &[u8]) -> Result<RxJsonRpcMessage<RoleServer>, Box<JsonRpcError>> {
    let refuse = |id, error| Box::new(JsonRpcError::new(id, error));
    let value: serde_json::Value = serde_json::from_slice(line)
        .map_err(|wrong| refuse(None, ErrorData::parse_error(format!("invalid JSON: {wrong}"), None)))?;
    let id = value.get("id").and_then(|id| serde_json::from_value(id.clone()).ok());
    serde_json::from_value(value).map_err(|_| {
        let message = "invalid JSON-RPC message: it needs \"jsonrpc\": \"2.0\", \"method\", \"params\" and, for a request, \"id\"";
        refuse(id, ErrorData::invalid_request(message, None))
    })
}

/// The reply to the sender of an invalid message; `None` if it is valid.
pub(crate) fn unreadable(message: &[u8]) -> Option<serde_json::Value> {
    read(message).err().map(|refused| refusal(&refused))
}

/// The reply to an invalid line. JSON-RPC requires a null id for a request that could not be read; the SDK leaves it
/// out.
fn refusal(refused: &JsonRpcError) -> serde_json::Value {
    serde_json::json!({ "jsonrpc": "2.0", "id": refused.id, "error": refused.error })
}

async fn write<W: AsyncWrite + Unpin>(output: &Mutex<W>, message: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut output = output.lock().await;
    output.write_all(&line).await?;
    output.flush().await
}

impl<R, W> Transport<RoleServer> for Lines<R, W>
where
    R: AsyncBufRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send + 'static,
{
    type Error = std::io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let output = Arc::clone(&self.output);
        async move { write(&output, &message).await }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            if let Some(sending_error) = &mut self.sending_error {
                // The next write reports an error.
                let _ = sending_error.await;
                self.sending_error = None;
            }
            let refused = match self.next().await? {
                Ok(line) if line.iter().all(u8::is_ascii_whitespace) => continue,
                Ok(line) => match read(&line) {
                    Ok(message) => return Some(message),
                    Err(refused) => refused,
                },
                Err(error) => Box::new(JsonRpcError::new(None, error)),
            };
            let output = Arc::clone(&self.output);
            self.sending_error = Some(tokio::spawn(async move {
                let _ = write(&output, &refusal(&refused)).await;
            }));
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.output.lock().await.flush().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages that get through, and the errors sent back.
    fn talk(input: &[u8]) -> (Vec<String>, Vec<serde_json::Value>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut lines = Lines::new(BufReader::with_capacity(7, input), Vec::new());
            let mut heard = Vec::new();
            while let Some(message) = lines.receive().await {
                heard.push(serde_json::to_value(&message).unwrap()["method"].to_string());
            }
            let sent = lines.output.lock().await.clone();
            let sent = sent.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            (heard, sent.map(|line| serde_json::from_slice(line).unwrap()).collect())
        })
    }

    #[test]
    fn what_cannot_be_read_is_answered_and_the_next_line_is_heard() {
        let ping = br#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#;
        let mut input = b"{nonsense\n\r\n[1,2]\n{\"jsonrpc\":\"2.0\",\"id\":5}\n".to_vec();
        input.extend([b'x'; LONGEST]);
        input.extend(b"yz\n");
        input.extend(ping);
        input.extend(b"\n{\"cut");
        let (heard, sent) = talk(&input);
        assert_eq!(heard, ["\"ping\""]);
        let codes: Vec<i64> = sent.iter().map(|answer| answer["error"]["code"].as_i64().unwrap()).collect();
        assert_eq!(codes, [-32700, -32600, -32600, -32600]);
        assert_eq!(sent[2]["id"], 5, "who asked is told which request was wrong");
    }
}
