// SPDX-License-Identifier: Apache-2.0
//! MCP over streamable HTTP: access control and limits, with TLS if a certificate is given.
//!
//! Every request needs the token, even on loopback, which other users of this machine can reach. The SDK checks `Host`
//! and `Origin`, so that no web page can reach this server through a browser, and limits messages.

mod guests;

use crate::Error;
use crate::mcp::Server;
use bytes::Bytes;
use guests::{Guests, Place};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::session::{SessionId, SessionManager};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;
use tower_service::Service;

/// The only path.
const PATH: &str = "/mcp";
/// Maximum size of a request, bytes.
const LARGEST: usize = 1 << 20;
/// Maximum number of sessions.
const MOST: usize = 64;
/// A session unused for this time ends if a new one needs its place.
const UNUSED: Duration = Duration::from_secs(60);
/// An unused session ends after this time in any case.
const IDLE: Duration = Duration::from_secs(15 * 60);
/// Maximum number of connections; a session may use one for server notifications and others for requests.
const CONNECTIONS: usize = 4 * MOST;
/// Maximum number of connections from one address.
const OF_ONE_ADDRESS: usize = CONNECTIONS / 2;
/// Timeout for the TLS handshake and the request headers.
const PATIENCE: Duration = Duration::from_secs(10);
/// Timeout for the request body.
const BODY_PATIENCE: Duration = Duration::from_secs(20);
/// Minimum length of a token, characters; shorter ones are easy to guess.
const SHORTEST_TOKEN: usize = 16;

/// How to serve over HTTP.
#[derive(Debug, Clone)]
pub struct Http {
    /// The address to listen on.
    pub address: SocketAddr,
    /// The token that clients must send.
    pub token: String,
    /// The TLS files; `None`: plain HTTP.
    pub tls: Option<Tls>,
    /// Additional host names under which clients may reach this server.
    pub hosts: Vec<String>,
}

/// A certificate and its key, PEM files.
#[derive(Debug, Clone)]
pub struct Tls {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// The key.
    pub key: PathBuf,
}

type Mcp = StreamableHttpService<Server, LocalSessionManager>;
type Reply = Response<BoxBody<Bytes, Infallible>>;

/// State shared by all connections.
struct Door {
    mcp: Mcp,
    sessions: Arc<LocalSessionManager>,
    /// Time of last use of each session.
    used: Mutex<HashMap<SessionId, Instant>>,
    token: String,
}

/// Serves until it is interrupted.
pub(crate) async fn serve(server: Server, http: Http, ready: impl FnOnce(SocketAddr)) -> Result<(), Error> {
    check_token(&http)?;
    let tls = http.tls.as_ref().map(acceptor).transpose()?;
    let listening = TcpListener::bind(http.address).await;
    let listener = listening.map_err(|source| Error::Listen { address: http.address, source })?;
    let ended = CancellationToken::new();
    let mut sessions = LocalSessionManager::default();
    sessions.session_config.keep_alive = Some(IDLE);
    let sessions = Arc::new(sessions);
    let config = StreamableHttpServerConfig::default()
        .with_allowed_hosts(allowed_hosts(&http))
        .enforce_origin_validation()
        .with_max_request_body_bytes(LARGEST)
        .with_cancellation_token(ended.clone());
    let mcp = StreamableHttpService::new(move || Ok(server.clone()), Arc::clone(&sessions), config);
    let door = Arc::new(Door { mcp, sessions, used: Mutex::default(), token: http.token });
    let guests = Arc::new(Guests::default());
    // Before the address is announced: a client that reads it may stop the server at once.
    let interrupted = interrupted()?;
    // Without a handler, SIGPIPE would end the server when a client hangs up during an answer.
    let _hung_up = signal(SignalKind::pipe())?;
    tokio::pin!(interrupted);
    ready(listener.local_addr()?);
    loop {
        let connection = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut interrupted => break,
        };
        // The connection closed before it was accepted, or too many files are open: try again.
        let Ok((connection, from)) = connection else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Some(place) = guests.admit(from.ip(), CONNECTIONS, OF_ONE_ADDRESS) else { continue };
        let (door, tls, place) = (Arc::clone(&door), tls.clone(), Arc::new(place));
        tokio::spawn(async move {
            tokio::select! {
                () = welcome(connection, tls, door, Arc::clone(&place)) => {}
                () = place.must_leave() => {}
            }
        });
    }
    ended.cancel();
    Ok(())
}

fn check_token(http: &Http) -> Result<(), Error> {
    if http.token.len() < SHORTEST_TOKEN { Err(Error::ShortToken(http.token.len())) } else { Ok(()) }
}

/// Allowed host names: a request with any other may come from a web page (DNS rebinding).
fn allowed_hosts(http: &Http) -> Vec<String> {
    let mut hosts: Vec<String> = vec!["localhost".into(), "127.0.0.1".into(), "::1".into()];
    if !http.address.ip().is_unspecified() {
        hosts.push(match http.address.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        });
    }
    hosts.extend(http.hosts.iter().cloned());
    hosts
}

fn acceptor(tls: &Tls) -> Result<TlsAcceptor, Error> {
    let wrong = |path: &PathBuf, why: String| Error::Tls { path: path.clone(), why };
    let certificates: Vec<_> = CertificateDer::pem_file_iter(&tls.certificate)
        .and_then(Iterator::collect)
        .map_err(|why| wrong(&tls.certificate, why.to_string()))?;
    if certificates.is_empty() {
        return Err(wrong(&tls.certificate, "no certificate found: expected a PEM file with BEGIN CERTIFICATE".into()));
    }
    let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(|why| wrong(&tls.key, why.to_string()))?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(certificates, key);
    let config = config.map_err(|why| wrong(&tls.certificate, why.to_string()))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn welcome(connection: TcpStream, tls: Option<TlsAcceptor>, door: Arc<Door>, place: Arc<Place>) {
    match tls {
        None => talk(connection, door, place).await,
        Some(tls) => {
            if let Ok(Ok(connection)) = tokio::time::timeout(PATIENCE, tls.accept(connection)).await {
                talk(connection, door, place).await;
            }
        }
    }
}

/// Answers the requests of a connection and ignores connection errors.
async fn talk(connection: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, door: Arc<Door>, place: Arc<Place>) {
    let answer = service_fn(move |request| {
        let (door, place) = (Arc::clone(&door), Arc::clone(&place));
        async move { Ok::<_, Infallible>(door.answer(request, &place).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(64 << 10);
    let _ = http.serve_connection(TokioIo::new(connection), answer).await;
}

impl Door {
    async fn answer(&self, request: Request<Incoming>, place: &Place) -> Reply {
        if !self.may_ask(&request) {
            let mut reply = refuse(StatusCode::UNAUTHORIZED, "token required: send Authorization: Bearer TOKEN");
            reply.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
            return reply;
        }
        place.is_known();
        if request.uri().path() != PATH {
            return refuse(StatusCode::NOT_FOUND, "gpuwhy's MCP server is at /mcp");
        }
        let session = request.headers().get("mcp-session-id").map(|id| id.to_str().unwrap_or_default().to_owned());
        if !self.has_room(session.as_deref()).await {
            return refuse(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many open sessions: close some, or wait a minute until unused ones expire",
            );
        }
        let ends = request.method() == Method::DELETE;
        let (head, body) = request.into_parts();
        let body = match tokio::time::timeout(BODY_PATIENCE, Limited::new(body, LARGEST).collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(wrong)) if wrong.is::<LengthLimitError>() => {
                return refuse(StatusCode::PAYLOAD_TOO_LARGE, "request body too large: at most 1 MiB");
            }
            Ok(Err(_)) => return refuse(StatusCode::BAD_REQUEST, "cannot read the request body"),
            Err(_) => return refuse(StatusCode::REQUEST_TIMEOUT, "timed out waiting for the request body"),
        };
        let Ok(mut reply) = self.mcp.clone().call(Request::from_parts(head, Full::new(body.clone()))).await;
        // The SDK answers a body that is not a message as a wrong content type, in plain text.
        if reply.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE
            && let Some(refusal) = crate::stdio::unreadable(&body)
        {
            return json(StatusCode::BAD_REQUEST, &refusal);
        }
        // The session has ended by now, and not every client accepts "202 Accepted" as success.
        if ends && reply.status() == StatusCode::ACCEPTED {
            *reply.status_mut() = StatusCode::OK;
        }
        reply
    }

    /// Notes the use of a session. Returns whether there is room for a new one, ending the longest unused one if
    /// needed.
    async fn has_room(&self, session: Option<&str>) -> bool {
        let open = self.sessions.sessions.read().await.keys().cloned().collect::<Vec<_>>();
        let longest_unused = {
            let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
            used.retain(|id, _| open.contains(id));
            let now = Instant::now();
            for id in &open {
                let last = used.entry(id.clone()).or_insert(now);
                if session == Some(&**id) {
                    *last = now;
                }
            }
            if session.is_some() || open.len() < MOST {
                return true;
            }
            let unused = used.iter().filter(|(_, last)| last.elapsed() >= UNUSED);
            unused.min_by_key(|(_, last)| **last).map(|(id, _)| id.clone())
        };
        match longest_unused {
            Some(id) => self.sessions.close_session(&id).await.is_ok(),
            None => false,
        }
    }

    /// Takes constant time: it reveals nothing about the token but its length.
    fn may_ask(&self, request: &Request<Incoming>) -> bool {
        let given = request.headers().get(header::AUTHORIZATION).map(header::HeaderValue::as_bytes);
        let given = given
            .and_then(|given| given.split_at_checked(7))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer "));
        given.is_some_and(|(_, given)| given.ct_eq(self.token.as_bytes()).into())
    }
}

fn refuse(status: StatusCode, why: &'static str) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::from_static(why.as_bytes())).boxed());
    *reply.status_mut() = status;
    // The rest of the request is not read.
    reply.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    reply
}

fn json(status: StatusCode, body: &serde_json::Value) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::from(body.to_string())).boxed());
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    reply
}

/// Waits for Ctrl-C or SIGTERM; both are caught from this call on.
pub(crate) fn interrupted() -> std::io::Result<impl Future<Output = ()>> {
    let (mut interrupt, mut end) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = end.recv() => {}
        }
    })
}
