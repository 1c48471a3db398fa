//! Network policies with the commands a user has.

use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::dev::dev;
use crate::support::{ask, muster, needs_root, poll_until, stderr, stdout};

/// A job whose task reports at short intervals whether it can connect to `port`.
fn job(dir: &Path, port: u16, policy: &str) -> PathBuf {
    let path = dir.join("fenced.hcl");
    let text = format!(
        r#"
        job "fenced" {{
          update {{ min_healthy_time = "0s" }}
          group "g" {{
            network {{
              policy {{
                {policy}
              }}
            }}
            task "t" {{
              driver = "native"
              config {{
                command = "/usr/bin/perl"
                args = ["-MIO::Socket::INET", "-e", <<-PERL
                  $| = 1;
                  while (1) {{
                    my $socket = IO::Socket::INET->new(PeerAddr => "127.0.0.1:{port}", Timeout => 1);
                    print $socket ? "open\n" : "shut\n";
                    select undef, undef, undef, 0.1;
                  }}
                PERL
                ]
              }}
              resources {{
                cpu    = 100
                memory = 64
              }}
            }}
          }}
        }}
        "#
    );
    std::fs::write(&path, text).unwrap();
    path
}

fn run(address: &str, path: &Path) {
    let ran = ask(address, &["job", "run", path.to_str().unwrap()]);
    assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
}

fn last_word(address: &str) -> Option<String> {
    let logs = ask(address, &["alloc", "logs", "fenced"]);
    stdout(&logs).lines().last().map(str::to_owned)
}

fn alloc_ids(address: &str) -> Vec<Value> {
    let answer = ask(address, &["--json", "job", "status", "fenced"]);
    let status: Value = serde_json::from_slice(&answer.stdout).unwrap();
    let allocs = status["Allocations"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    allocs.iter().map(|alloc| alloc["ID"].clone()).collect()
}

#[test]
fn network_policy_is_enforced_and_updated_in_place() {
    if !needs_root("network_policy_is_enforced_and_updated_in_place") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_process, address) = dev(dir.path());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().for_each(drop));

    let shut = "egress {\n default = \"deny\"\n }";
    run(&address, &job(dir.path(), port, shut));
    poll_until("a refused connection", || {
        (last_word(&address)? == "shut").then_some(())
    });
    let before = alloc_ids(&address);
    let refused = poll_until("a verdict", || {
        let shown = stdout(&ask(&address, &["net", "fenced", "--denied"]));
        shown.contains(" deny tcp to 127.0.0.1:").then_some(shown)
    });
    assert!(refused.contains(&format!("127.0.0.1:{port}")), "{refused}");
    assert!(refused.contains("by default"), "{refused}");
    assert!(refused.contains("egress"), "{refused}");

    let open = format!(
        r#"egress {{
             default = "deny"
             rule "there" {{
               action   = "allow"
               protocol = "tcp"
               peers    = ["127.0.0.1"]
               ports    = ["{port}"]
             }}
           }}"#
    );
    let changed = job(dir.path(), port, &open);
    let plan = ask(&address, &["job", "plan", changed.to_str().unwrap()]);
    assert_eq!(plan.status.code(), Some(1), "{}", stderr(&plan));
    assert!(
        stdout(&plan).contains("in-place update"),
        "{}",
        stdout(&plan)
    );
    run(&address, &changed);
    poll_until("an open connection", || {
        (last_word(&address)? == "open").then_some(())
    });
    assert_eq!(alloc_ids(&address), before, "nothing was replaced");
    let counted = stdout(&ask(&address, &["net", "fenced"]));
    assert!(counted.contains("there"), "{counted}");

    let wrong = job(dir.path(), port, "egress {\n default = \"maybe\"\n }");
    let refused = ask(&address, &["job", "run", wrong.to_str().unwrap()]);
    assert_ne!(refused.status.code(), Some(0));
    assert!(
        stderr(&refused).contains("unknown action `maybe`: use `allow` or `deny`"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn cluster_policy_applies_immediately_below_job_policy() {
    if !needs_root("cluster_policy_applies_immediately_below_job_policy") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_process, address) = dev(dir.path());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let wait_for_word =
        |word: &str| poll_until(word, || (last_word(&address)? == word).then_some(()));
    let set = |text: &str| {
        let file = dir.path().join("policy.hcl");
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        ask(&address, &["operator", "network", "set-policy", file])
    };
    run(&address, &job(dir.path(), port, "egress {}"));
    wait_for_word("open");
    let before = alloc_ids(&address);

    let closed = "policy {\n egress {\n rule \"shut\" {\n action = \"deny\"\n protocol = \"tcp\"\n }\n }\n }\n";
    let done = set(closed);

    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    wait_for_word("shut");
    assert_eq!(alloc_ids(&address), before, "nothing was replaced");
    poll_until("its verdicts", || {
        let shown = stdout(&ask(&address, &["net", "fenced", "--denied"]));
        shown.contains("cluster/shut").then_some(())
    });
    let shown = stdout(&ask(&address, &["operator", "network", "get-policy"]));
    assert!(shown.contains("shut") && shown.contains("deny"), "{shown}");

    let own = "egress {\n rule \"mine\" {\n action = \"allow\"\n }\n }";
    run(&address, &job(dir.path(), port, own));
    wait_for_word("open");

    let wrong = set("policy {\n egress {\n default = \"maybe\"\n }\n }\n");
    let message = stderr(&wrong);
    assert_eq!(wrong.status.code(), Some(2), "{message}");
    assert!(message.contains("use `allow` or `deny`"), "{message}");
    let message = stderr(&set("rule {}\n"));
    assert!(message.contains("only one block `policy`"), "{message}");
}

/// A job whose task sends a datagram of a kilobyte every millisecond, as far as `egress` allows it.
fn write_flood_job(dir: &Path, port: u16, egress: &str) -> PathBuf {
    let path = dir.join("hasty.hcl");
    let text = format!(
        r#"
        job "hasty" {{
          update {{ min_healthy_time = "0s" }}
          group "g" {{
            task "t" {{
              driver = "native"
              config {{
                command = "/usr/bin/perl"
                args = ["-MIO::Socket::INET", "-e", <<-PERL
                  my $socket = IO::Socket::INET->new(Proto => "udp", PeerAddr => "127.0.0.1:{port}");
                  while (1) {{
                    $socket->send("x" x 1000);
                    select undef, undef, undef, 0.001;
                  }}
                PERL
                ]
              }}
              policy {{
                egress {{
                  {egress}
                }}
              }}
              resources {{
                cpu    = 100
                memory = 64
              }}
            }}
          }}
        }}
        "#
    );
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn egress_over_rate_is_counted() {
    if !needs_root("egress_over_rate_is_counted") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_process, address) = dev(dir.path());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();

    let wrong = write_flood_job(dir.path(), port, "rate = \"1 parsec\"");
    let refused = ask(&address, &["job", "run", wrong.to_str().unwrap()]);
    assert_ne!(refused.status.code(), Some(0));
    let message = stderr(&refused);
    assert!(
        message.contains("`1 parsec` is not a rate such as 100mbit"),
        "{message}"
    );

    run(
        &address,
        &write_flood_job(dir.path(), port, "rate = \"100kbit\""),
    );
    poll_until("datagrams above the rate", || {
        let shown = stdout(&ask(&address, &["alloc", "status", "hasty"]));
        let line = shown.lines().find(|line| line.contains("above rate"))?;
        let sent = line.split_whitespace().rev().nth(1)?;
        sent.parse::<u64>()
            .is_ok_and(|count| count > 0)
            .then_some(())
    });

    let faster = write_flood_job(dir.path(), port, "rate = \"1gbit\"");
    let plan = stdout(&ask(&address, &["job", "plan", faster.to_str().unwrap()]));
    assert!(plan.contains("in-place update"), "{plan}");
    assert!(plan.contains("100kbit") && plan.contains("1gbit"), "{plan}");
    assert!(!plan.contains("create/destroy"), "{plan}");
}

/// A follower that does not read blocks nothing. When it reads again, it gets new refusals.
#[test]
fn denied_verdicts_stream_survives_slow_reader() {
    if !needs_root("denied_verdicts_stream_survives_slow_reader") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_process, address) = dev(dir.path());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let rule = "rule \"no-datagrams\" {\n action = \"deny\"\n protocol = \"udp\"\n }";
    run(&address, &write_flood_job(dir.path(), port, rule));
    let refusals = || {
        let answer = ask(&address, &["--json", "net", "hasty", "--denied"]);
        let shown: Value = serde_json::from_slice(&answer.stdout).ok()?;
        let network = &shown[0]["Network"];
        let verdicts = network["Verdicts"].as_array()?.len();
        assert!(verdicts <= 1_024, "{verdicts} are told at once");
        network["Rules"][0]["Packets"].as_u64()
    };
    poll_until("a refusal", || refusals().filter(|count| *count > 0));

    let mut following = muster()
        .args(["--address", &address, "net", "hasty", "--denied", "-f"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = following.stdout.take().unwrap();
    // Full after some forty lines.
    rustix::pipe::fcntl_setpipe_size(&output, 4_096).unwrap();
    let mut lines = BufReader::with_capacity(256, output).lines();
    let mut read = |count: usize| {
        for _ in 0..count {
            let line = lines.next().unwrap().unwrap();
            let what = format!("deny udp to 127.0.0.1:{port} ");
            assert!(line.contains(&what), "{line}");
            assert!(line.ends_with(" by no-datagrams"), "{line}");
        }
    };
    read(3);
    let before = refusals().unwrap();
    poll_until("many refusals that nobody reads", || {
        refusals().filter(|count| *count > before + 2_000)
    });
    read(300);

    assert!(following.try_wait().unwrap().is_none());
    following.kill().unwrap();
    following.wait().unwrap();
}

/// A job whose task sends to twenty ports in turn, each denied by a rule of its own. A second has more verdicts than
/// one answer can hold.
fn refused_by_many(dir: &Path) -> PathBuf {
    let path = dir.join("refused.hcl");
    let rule = |at: u32| {
        let port = 9_000 + at;
        format!(
            "rule \"r{at}\" {{\n action = \"deny\"\n protocol = \"udp\"\n ports = [\"{port}\"]\n }}\n"
        )
    };
    let rules: String = (0..20).map(rule).collect();
    let text = format!(
        r#"
        job "refused" {{
          update {{ min_healthy_time = "0s" }}
          group "g" {{
            task "t" {{
              driver = "native"
              config {{
                command = "/usr/bin/perl"
                args = ["-MSocket", "-e", <<-PERL
                  socket my $socket, PF_INET, SOCK_DGRAM, 0;
                  while (1) {{
                    send $socket, "x", 0, sockaddr_in($_, INADDR_LOOPBACK) for 9000 .. 9019;
                    select undef, undef, undef, 0.01;
                  }}
                PERL
                ]
              }}
              policy {{
                egress {{
                  {rules}
                }}
              }}
              resources {{
                cpu    = 100
                memory = 64
              }}
            }}
          }}
        }}
        "#
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// Every number is printed, or counted as missed at its position.
#[test]
fn verdicts_that_a_slow_follower_missed_are_announced() {
    if !needs_root("verdicts_that_a_slow_follower_missed_are_announced") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_process, address) = dev(dir.path());
    run(&address, &refused_by_many(dir.path()));
    let newest = || {
        let answer = ask(&address, &["--json", "net", "refused"]);
        let shown: Value = serde_json::from_slice(&answer.stdout).ok()?;
        shown[0]["Network"]["Last"].as_u64()
    };
    poll_until("a verdict", || newest().filter(|last| *last > 0));
    let mut following = muster()
        .args(["--address", &address, "--json", "net", "refused", "-f"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = following.stdout.take().unwrap();
    // Full after some ten verdicts.
    rustix::pipe::fcntl_setpipe_size(&output, 4_096).unwrap();
    let output = BufReader::with_capacity(256, output);
    let mut values = serde_json::Deserializer::from_reader(output).into_iter::<Value>();
    let mut number = values.next().unwrap().unwrap()["Verdict"]["Number"]
        .as_u64()
        .unwrap();
    let before = newest().unwrap();
    poll_until("verdicts that nobody reads", || {
        newest().filter(|last| *last > before + 4_096)
    });

    let mut missed = Vec::new();
    while missed.is_empty() || number < before + 4_096 {
        let next = values.next().unwrap().unwrap();
        if let Some(count) = next["Missed"].as_u64() {
            missed.push(count);
            number += count;
            continue;
        }
        number += 1;
        assert_eq!(next["Verdict"]["Number"], number, "after {missed:?}");
    }

    assert!(missed.iter().sum::<u64>() > 1_024, "{missed:?}");
    following.kill().unwrap();
    following.wait().unwrap();
}

/// The machine, as seen from an allocation's own network.
const GATEWAY: &str = "169.254.1.1";

#[test]
fn one_off_task_egress_follows_its_rules() {
    if !needs_root("one_off_task_egress_follows_its_rules") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_process, address) = dev(dir.path());
    let [named, other] = [(), ()].map(|()| TcpListener::bind("0.0.0.0:0").unwrap());
    let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
    // The machine is behind the gateway of the task's network. The task's loopback is its own.
    let try_all = format!(
        "for peer in {GATEWAY}:{named} {GATEWAY}:{other} 127.0.0.1:{named}; do \
         perl -MIO::Socket::INET -e 'exit !IO::Socket::INET->new(PeerAddr => shift, Timeout => 5)' $peer \
         && echo yes || echo no; done > /tmp/result",
        named = port(&named),
        other = port(&other)
    );
    let definition = json!({
        "task_guid": "picky", "rootfs": "preloaded:host", "memory_mb": 64, "disk_mb": 10,
        "result_file": "/tmp/result",
        "egress_rules": [{"protocol": "tcp", "destinations": [GATEWAY, "127.0.0.1"], "ports": [port(&named)]}],
        "action": {"run": {"path": "/bin/sh", "args": ["-c", try_all], "user": "vcap"}},
    });
    let path = dir.path().join("task.json");
    std::fs::write(&path, definition.to_string()).unwrap();

    let done = ask(&address, &["task", "run", path.to_str().unwrap()]);

    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    assert_eq!(stdout(&done).trim(), "yes\nno\nno");
}
