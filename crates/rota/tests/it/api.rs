//! The API as strangers meet it: everything that its description allows and
//! forbids, sent by a tool that has read nothing else.

use std::process::Command;

use crate::node::{Node, Place};

/// No answer is 5xx, and none is other than described.
///
/// Left out are streams, which the tool cannot read, and the workers' exchange,
/// which waits for work by design; their own tests give them nonsense.
#[test]
fn the_api_answers_as_its_description_says() {
    let tool = std::env::var("ROTA_TEST_SCHEMATHESIS").expect("`eval \"$(scripts/services env)\"` sets it");
    let place = Place::new();
    let node = Node::ready(&place, &["--demo"]);
    let description = format!("http://{}/api/v1/openapi.json", node.address());
    let checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";
    let output = Command::new(tool)
        .args(["run", &description, "--checks", checks, "--phases", "coverage,fuzzing", "--max-examples", "10"])
        .args(["--exclude-path-regex", "/(bulk/runs|bulk/jobs|events|workers/sync)$", "--seed", "7", "--no-color"])
        .current_dir(place.path("."))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
}
