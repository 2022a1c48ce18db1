//! MCP, the Model Context Protocol over HTTP: which tool a message calls.
//!
//! One JSON-RPC 2.0 message a POST. Names compare exactly, after JSON's own escapes. A server may
//! be less exact: fold the case of a method or a member (Go's JSON does), trim blanks, or take a
//! batch. A message that is no tool call here and would be one there is unclear; so is anything
//! that isn't a message by the letter.

use super::json::{Json, Members};
use super::{Content, Unclear, shown};
use crate::CanonicalRequest;

/// Characters of a tool's name, by the specification.
const MAX_TOOL_NAME: usize = 128;

/// What a request does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mcp {
    /// `tools/call` of this tool, as request or notification. The name has only letters, digits and
    /// `_ - . /`, so a server can fold its case and nothing else.
    ToolCall(String),
    /// Another method: `initialize`, `tools/list`, and also `resources/read` and methods that only
    /// this server knows.
    Other(String),
    /// The answer to a request of the server.
    Response,
    /// No message: the event stream is opened (GET), or the session ended (DELETE).
    Session,
}

/// Reads a request. `None` for one that is neither a message nor a part of a session, as the
/// `OPTIONS` of a browser.
pub(crate) fn mcp_message(
    request: &CanonicalRequest,
    content: &Content<'_>,
) -> Result<Option<Mcp>, Unclear> {
    match request.method() {
        "POST" => message(content).map(Some),
        _ if !content.is_empty() => Err(Unclear::new("messages are sent with POST")),
        "GET" | "DELETE" => Ok(Some(Mcp::Session)),
        _ => Ok(None),
    }
}

fn message(content: &Content<'_>) -> Result<Mcp, Unclear> {
    let is_json = content.media_type()?.is_some_and(|media_type| {
        media_type.essence() == "application/json" && media_type.is_utf8()
    });
    if !is_json {
        return Err(Unclear::new("messages are `application/json` in UTF-8"));
    }
    let mut message = match content.json()? {
        Json::Object(message) => message,
        Json::Array => return Err(Unclear::new("a batch of messages")),
        _ => return Err(Unclear::new("a message is a JSON object")),
    };
    check_envelope(&message)?;
    let answers = message.contains_key("result") || message.contains_key("error");
    match message.remove("method") {
        Some(_) if answers => Err(Unclear::new("both a call and an answer")),
        Some(Json::String(method)) => call(&method, message.get("params")),
        Some(_) => Err(Unclear::new("`method` is no string")),
        None if message.contains_key("params") => Err(Unclear::new("`params` without `method`")),
        None if answers => Ok(Mcp::Response),
        None => Err(Unclear::new("neither a call nor an answer")),
    }
}

/// JSON-RPC has these members and no others; a further one could be `Method` to a lenient server.
fn check_envelope(message: &Members<'_>) -> Result<(), Unclear> {
    const MEMBERS: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];
    if let Some(name) = message.keys().find(|name| !MEMBERS.contains(&&***name)) {
        let why = format!("JSON-RPC has no member `{}`", shown(name.as_bytes()));
        return Err(Unclear::new(why));
    }
    match message.get("jsonrpc") {
        Some(Json::String(version)) if version == "2.0" => {}
        _ => return Err(Unclear::new("`jsonrpc` isn't \"2.0\"")),
    }
    match message.get("id") {
        None | Some(Json::String(_) | Json::Null | Json::Other) => Ok(()),
        Some(_) => Err(Unclear::new("`id` is no string or number")),
    }
}

fn call(method: &str, params: Option<&Json<'_>>) -> Result<Mcp, Unclear> {
    if method == "tools/call" {
        return tool_name(params).map(Mcp::ToolCall);
    }
    if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_graphic()) {
        let why = format!("`{}` is no plain method name", shown(method));
        return Err(Unclear::new(why));
    }
    // `Tools/Call`, `tools.call`, `/tools/call/`, `tools%2fcall`.
    let mut letters = method.to_ascii_lowercase().replace("%2f", "/");
    letters.retain(|c| c.is_ascii_alphanumeric());
    if letters == "toolscall" {
        let why = format!("some servers take `{}` for `tools/call`", shown(method));
        return Err(Unclear::new(why));
    }
    Ok(Mcp::Other(method.to_owned()))
}

fn tool_name(params: Option<&Json<'_>>) -> Result<String, Unclear> {
    let Some(Json::Object(params)) = params else {
        return Err(Unclear::new("the params of `tools/call` are an object"));
    };
    let could_be_name =
        |member: &str| member != "name" && member.trim().eq_ignore_ascii_case("name");
    if let Some(member) = params.keys().find(|member| could_be_name(member)) {
        let why = format!(
            "some servers take the param `{}` for `name`",
            shown(member.as_bytes())
        );
        return Err(Unclear::new(why));
    }
    match params.get("name") {
        Some(Json::String(name)) if is_tool_name(name) => Ok(name.clone().into_owned()),
        Some(Json::String(name)) => {
            let why = format!("`{}` is no plain tool name", shown(name.as_bytes()));
            Err(Unclear::new(why))
        }
        _ => Err(Unclear::new("the name of the tool is no string")),
    }
}

fn is_tool_name(name: &str) -> bool {
    (1..=MAX_TOOL_NAME).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{coded, content, cut_off, request};
    use super::*;
    use proptest::prelude::*;

    fn post(body: &str) -> Result<Option<Mcp>, Unclear> {
        let content = content("application/json", body.as_bytes());
        mcp_message(&request("POST", "/mcp"), &content)
    }

    fn bare(method: &str, body: &[u8]) -> Result<Option<Mcp>, Unclear> {
        mcp_message(&request(method, "/mcp"), &content("", body))
    }

    fn other(method: &str) -> Result<Option<Mcp>, Unclear> {
        Ok(Some(Mcp::Other(method.to_owned())))
    }

    fn tool(name: &str) -> Result<Option<Mcp>, Unclear> {
        Ok(Some(Mcp::ToolCall(name.to_owned())))
    }

    const CALL: &str = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call",
        "params":{"name":"search","arguments":{"name":"delete","q":["x"]},"_meta":{"a":1}}}"#;

    #[test]
    fn a_call_names_its_tool() {
        assert_eq!(post(CALL), tool("search"));
        for (body, name) in [
            // A notification may be carried out all the same.
            (
                r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"a"}}"#,
                "a",
            ),
            (
                r#"{"jsonrpc":"2.0","method":"tools\/call","params":{"name":"a"}}"#,
                "a",
            ),
            (
                r#"{"jsonrpc":"2.0","\u006dethod":"\u0074ools/call","params":{"n\u0061me":"\u0061"}}"#,
                "a",
            ),
            (
                r#"{"params":{"name":"repo.get_File-2/x"},"method":"tools/call","jsonrpc":"2.0"}"#,
                "repo.get_File-2/x",
            ),
            (
                r#"{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"a","task":{}}}"#,
                "a",
            ),
        ] {
            assert_eq!(post(body), tool(name), "{body}");
        }
    }

    #[test]
    fn other_methods_and_answers_are_told_apart() {
        for method in [
            "initialize",
            "ping",
            "tools/list",
            "tools/calls",
            "tools/call2",
            "notifications/tools/list_changed",
            "resources/templates/list",
            "x-vendor.do$it",
        ] {
            let body = format!(r#"{{"jsonrpc":"2.0","id":"1","method":"{method}","params":{{}}}}"#);
            assert_eq!(post(&body), other(method));
        }
        for body in [
            r#"{"jsonrpc":"2.0","id":1,"result":{"name":"x"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"x"}}"#,
        ] {
            assert_eq!(post(body), Ok(Some(Mcp::Response)));
        }
    }

    #[test]
    fn requests_without_message_are_a_session() {
        assert_eq!(bare("GET", b""), Ok(Some(Mcp::Session)));
        assert_eq!(bare("DELETE", b""), Ok(Some(Mcp::Session)));
        assert_eq!(bare("OPTIONS", b""), Ok(None));
        assert_eq!(bare("HEAD", b""), Ok(None));
        for method in ["GET", "DELETE", "PUT", "post", "OPTIONS"] {
            assert!(bare(method, CALL.as_bytes()).is_err(), "{method}");
            let unread = mcp_message(&request(method, "/mcp"), &cut_off("a/b", b""));
            assert!(unread.is_err(), "{method}");
        }
        assert!(bare("POST", b"").is_err());
    }

    #[test]
    fn methods_that_a_lenient_server_takes_for_a_call_are_unclear() {
        for method in [
            "Tools/Call",
            "TOOLS/CALL",
            "tools/Call",
            "tools.call",
            "tools_call",
            "toolsCall",
            "/tools/call",
            "tools/call/",
            "tools//call",
            "tools%2Fcall",
            "tools/call ",
            " tools/call",
            "tools/call\\n",
            "tools/call\\u0000",
            "tools/call\\u0000x",
            "tools/\\u200bcall",
            "tools\\\\call",
            "tools/ca\\u217cl",
            "tool\\u017f/call",
            "",
        ] {
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"name":"a"}}}}"#
            );
            assert!(post(&body).is_err(), "{method}: {:?}", post(&body));
        }
    }

    #[test]
    fn names_that_a_lenient_server_reads_otherwise_are_unclear() {
        for params in [
            r#"{}"#,
            r#"[]"#,
            r#"["a"]"#,
            r#""a""#,
            r#"null"#,
            r#"{"name":null}"#,
            r#"{"name":1}"#,
            r#"{"name":["a"]}"#,
            r#"{"name":{"name":"a"}}"#,
            r#"{"name":""}"#,
            r#"{"name":"a "}"#,
            r#"{"name":" a"}"#,
            r#"{"name":"a\u0000"}"#,
            r#"{"name":"a\nb"}"#,
            r#"{"name":"ä"}"#,
            r#"{"name":"a\u200b"}"#,
            r#"{"name":"\uff41"}"#,
            r#"{"name":"a","name":"b"}"#,
            r#"{"name":"a","n\u0061me":"b"}"#,
            r#"{"name":"a","Name":"b"}"#,
            r#"{"NAME":"b","name":"a"}"#,
            r#"{"name":"a"," name":"b"}"#,
            r#"{"Name":"b"}"#,
        ] {
            let body =
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
            assert!(post(&body).is_err(), "{params}");
        }
        let named = |len: usize| {
            let name = "a".repeat(len);
            post(&format!(
                r#"{{"jsonrpc":"2.0","method":"tools/call","params":{{"name":"{name}"}}}}"#
            ))
        };
        assert!(named(MAX_TOOL_NAME).is_ok());
        assert!(named(MAX_TOOL_NAME + 1).is_err());
    }

    #[test]
    fn what_is_no_single_message_is_unclear() {
        for body in [
            "",
            "null",
            "\"tools/call\"",
            "{}",
            "[]",
            &format!("[{CALL}]"),
            &format!("[{CALL},{CALL}]"),
            &format!("{CALL}{CALL}"),
            &format!("{CALL}\n{CALL}"),
            &format!("\u{feff}{CALL}"),
            r#"{"id":1,"method":"ping"}"#,
            r#"{"jsonrpc":2.0,"id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0 ","id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"jsonrpc":"2.0","id":1,"params":{"name":"a"}}"#,
            r#"{"jsonrpc":"2.0","id":[1],"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":1}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":null}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":["tools/call"]}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","m\u0065thod":"tools/call"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call"}"#,
            r#"{"jsonrpc":"2.0","id":1,"METHOD":"tools/call","params":{"name":"a"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","method ":"tools/call"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"},"Params":{"name":"b"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"},"param\u017f":{"name":"b"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{},"params":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","x":1}"#,
        ] {
            assert!(post(body).is_err(), "{body}");
        }
    }

    #[test]
    fn only_plain_whole_json_is_read() {
        let asked = request("POST", "/mcp");
        for media_type in [
            "",
            "text/plain",
            "text/json",
            "application/json-rpc",
            "application/vnd.x+json",
            "application/json;charset=utf-16",
            "application/json, application/json",
        ] {
            let sent = content(media_type, CALL.as_bytes());
            assert!(mcp_message(&asked, &sent).is_err(), "{media_type}");
        }
        let sent = content("application/json; charset=UTF-8", CALL.as_bytes());
        assert_eq!(mcp_message(&asked, &sent), tool("search"));
        let sent = coded("application/json", "gzip", CALL.as_bytes());
        assert!(mcp_message(&asked, &sent).is_err());
        let sent = cut_off("application/json", CALL.as_bytes());
        assert!(mcp_message(&asked, &sent).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            let _ = mcp_message(&request("POST", "/mcp"), &content("application/json", &bytes));
        }

        /// A damaged call is unclear, or a message of what its bytes say.
        #[test]
        fn a_damaged_call_never_calls_another_tool(at in 0..CALL.len(), byte in 0x20_u8..0x7f) {
            let mut bytes = CALL.as_bytes().to_vec();
            bytes[at] = byte;
            let text = String::from_utf8(bytes).unwrap();
            if let Ok(Some(Mcp::ToolCall(name))) = post(&text) {
                let quoted = format!("\"name\":\"{name}\"");
                prop_assert!(text.contains(&quoted), "{}", text);
            }
        }
    }
}
