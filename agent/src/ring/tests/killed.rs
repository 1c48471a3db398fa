//! SIGKILL for a process that drains, again and again, under a writer at full speed.

use super::{
    ALL, Child, Command, Duration, LogRing, Path, Place, Stdio, assert_same, detach, lines, until,
    write_lines,
};

const ROOT_ENV: &str = "MUSTER_TEST_RING_ROOT";
const CONFIG_ENV: &str = "MUSTER_TEST_RING_CONFIG";

/// What the child runs: drains until it is killed.
#[tokio::test]
#[ignore = "the child process of killed_drainer_neither_loses_nor_repeats"]
async fn drains_until_killed() {
    let Some(root) = std::env::var_os(ROOT_ENV) else {
        return;
    };
    let config: usize = std::env::var(CONFIG_ENV).unwrap().parse().unwrap();
    let place = Place::at(Path::new(&root));
    let ring = LogRing::start(ALL[config]).unwrap();
    ring.attach(place.spec("web.stdout")).await.unwrap();
    std::future::pending::<()>().await;
}

fn spawn(place: &Place, config: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "ring::tests::killed::drains_until_killed",
            "--ignored",
        ])
        .env(ROOT_ENV, &place.root)
        .env(CONFIG_ENV, config.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn end(place: &Place) -> u64 {
    let files = crate::logs::LogReader::open(&place.logs(), "web.stdout")
        .unwrap()
        .files()
        .unwrap();
    files.last().map_or(0, |file| file.offset + file.bytes)
}

/// Both engines, with splice. (With copy it fails: that is what splice is for.)
#[tokio::test]
async fn killed_drainer_neither_loses_nor_repeats() {
    for config in [0, 1] {
        let place = Place::new();
        let writer = write_lines(place.task_side("web.stdout"), 0..600_000);
        let mut kills = 0;
        while !writer.is_finished() {
            let mut child = spawn(&place, config);
            let before = end(&place);
            let due = 300_000 + 7_919 * kills;
            until("the child drains", async || {
                end(&place) > before + due || writer.is_finished()
            })
            .await;
            tokio::time::sleep(Duration::from_micros(337 * (kills % 10))).await;
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
        }
        let task = writer.join().unwrap();
        let ring = LogRing::start(ALL[config]).unwrap();
        let stream_id = ring.attach(place.spec("web.stdout")).await.unwrap();
        detach(&ring, stream_id).await;

        assert_same(&place.text("web.stdout"), &lines(600_000));
        assert!(kills >= 5, "{kills}");
        drop(task);
    }
}
