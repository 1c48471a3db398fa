// A plugin host in another language, for tests: it launches a driver as Nomad does and takes it
// through a task's life. Everything between it and the driver is the plugin library's and generated
// from the .proto files. It prints one line for each step that went well, and ends with 1 at the
// first that did not.
//
// Arguments: a directory to work in, then the driver's executable and its arguments.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/golang/protobuf/ptypes"
	hclog "github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"muster.test/msgpack"
	"muster.test/pb"
)

const patience = 30 * time.Second

var handshake = plugin.HandshakeConfig{
	MagicCookieKey:   "NOMAD_PLUGIN_MAGIC_COOKIE",
	MagicCookieValue: "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255",
	ProtocolVersion:  2,
}

// driver holds the clients of both services of a plugin.
type driver struct {
	base  pb.BasePluginClient
	tasks pb.DriverClient
}

type dispenser struct{ plugin.NetRPCUnsupportedPlugin }

func (dispenser) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error { return nil }

func (dispenser) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (interface{}, error) {
	return &driver{base: pb.NewBasePluginClient(conn), tasks: pb.NewDriverClient(conn)}, nil
}

func main() {
	h := &host{dir: os.Args[1], command: os.Args[2:]}
	// Nomad launches a plugin once to ask who it is, and again to use it.
	first, _ := h.launch(nil)
	h.introduce()
	first.Kill()
	if !first.Exited() {
		fail("the plugin did not end when it was told to")
	}
	say("ends when told")

	second, _ := h.launch(nil)
	h.introduce()
	h.exits()
	h.stops()
	h.signals()
	h.execs()
	h.sessions()
	h.terminals()
	h.networks()
	h.configures()
	h.measures()
	h.resolves()
	h.survives(second)
	fmt.Println("done")
}

type host struct {
	dir     string
	command []string
	driver  *driver
	next    int
}

func say(step string) { fmt.Println("ok: " + step) }

// undo ends, last first, what a host that fails would leave behind: tasks and plugins.
var undo []func()

func fail(format string, values ...interface{}) {
	fmt.Printf("failed: "+format+"\n", values...)
	for at := len(undo) - 1; at >= 0; at-- {
		undo[at]()
	}
	os.Exit(1)
}

func must(what string, err error) {
	if err != nil {
		fail("%s: %v", what, err)
	}
}

func deadline() context.Context {
	ctx, _ := context.WithTimeout(context.Background(), patience) // nolint: the process is short
	return ctx
}

func (h *host) launch(reattach *plugin.ReattachConfig) (*plugin.Client, *plugin.ReattachConfig) {
	config := &plugin.ClientConfig{
		HandshakeConfig:  handshake,
		VersionedPlugins: map[int]plugin.PluginSet{2: {"driver": dispenser{}}},
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Reattach:         reattach,
		Logger: hclog.New(&hclog.LoggerOptions{
			Output: os.Stderr,
			Level:  hclog.Trace,
		}),
	}
	if reattach == nil {
		config.Cmd = exec.Command(h.command[0], h.command[1:]...)
	} else {
		// A reattached plugin has no negotiated version.
		config.Plugins = plugin.PluginSet{"driver": dispenser{}}
	}
	client := plugin.NewClient(config)
	undo = append(undo, client.Kill)
	protocol, err := client.Client()
	must("launch", err)
	must("ping", protocol.Ping())
	dispensed, err := protocol.Dispense("driver")
	must("dispense", err)
	h.driver = dispensed.(*driver)
	return client, client.ReattachConfig()
}

func (h *host) introduce() {
	info, err := h.driver.base.PluginInfo(deadline(), &pb.PluginInfoRequest{})
	must("PluginInfo", err)
	if info.Type != pb.PluginType_DRIVER || info.Name != "native" || info.PluginApiVersions[0] != "v0.1.0" {
		fail("PluginInfo is %v", info)
	}
	schema, err := h.driver.base.ConfigSchema(deadline(), &pb.ConfigSchemaRequest{})
	must("ConfigSchema", err)
	// What Nomad sends for a driver without a block: each name of the schema, null.
	config := map[string]interface{}{}
	for name := range schema.GetSpec().GetObject().GetAttributes() {
		config[name] = nil
	}
	must("SetConfig", h.configure(config))
	tasks, err := h.driver.tasks.TaskConfigSchema(deadline(), &pb.TaskConfigSchemaRequest{})
	must("TaskConfigSchema", err)
	if tasks.GetSpec().GetObject().GetAttributes()["command"] == nil {
		fail("the schema of tasks has no command: %v", tasks)
	}
	capabilities, err := h.driver.tasks.Capabilities(deadline(), &pb.CapabilitiesRequest{})
	must("Capabilities", err)
	if !capabilities.Capabilities.SendSignals || !capabilities.Capabilities.Exec {
		fail("capabilities are %v", capabilities)
	}
	stream, err := h.driver.tasks.Fingerprint(deadline(), &pb.FingerprintRequest{})
	must("Fingerprint", err)
	first, err := stream.Recv()
	must("Fingerprint", err)
	if first.Health != pb.FingerprintResponse_HEALTHY {
		fail("the driver is not healthy: %v", first)
	}
	say("introduces itself")
}

func (h *host) configure(config map[string]interface{}) error {
	_, err := h.driver.base.SetConfig(deadline(), &pb.SetConfigRequest{
		MsgpackConfig:    msgpack.Encode(config),
		PluginApiVersion: "v0.1.0",
	})
	return err
}

// task is a new configuration as Nomad's client makes one: directories, FIFOs, msgpack with nulls.
// The fields are those of the driver's own configuration beside the script.
func (h *host) task(script string, fields map[string]interface{}) (*pb.TaskConfig, *os.File) {
	h.next++
	name := fmt.Sprintf("task%d", h.next)
	alloc := filepath.Join(h.dir, name)
	for _, dir := range []string{"alloc/logs", name + "/local", name + "/secrets", name + "/tmp"} {
		must("directories", os.MkdirAll(filepath.Join(alloc, dir), 0o755))
	}
	fifos := []string{}
	readers := []*os.File{}
	for _, stream := range []string{"stdout", "stderr"} {
		path := filepath.Join(alloc, "alloc/logs", "."+name+"."+stream+".fifo")
		must("FIFO", syscall.Mkfifo(path, 0o600))
		reader, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		must("FIFO", err)
		fifos = append(fifos, path)
		readers = append(readers, reader)
	}
	config := map[string]interface{}{
		"command": "/bin/sh",
		"args":    []string{"-c", script},
	}
	for name, value := range fields {
		config[name] = value
	}
	schema, err := h.driver.tasks.TaskConfigSchema(deadline(), &pb.TaskConfigSchemaRequest{})
	must("TaskConfigSchema", err)
	for field := range schema.GetSpec().GetObject().GetAttributes() {
		if _, set := config[field]; !set {
			config[field] = nil
		}
	}
	return &pb.TaskConfig{
		Id:                  fmt.Sprintf("4f6a9a4e-0000-4000-8000-%012d/%s/%08x", h.next, name, h.next),
		Name:                name,
		MsgpackDriverConfig: msgpack.Encode(config),
		Env:                 map[string]string{"PATH": "/usr/bin:/bin", "NOMAD_TASK_NAME": name},
		AllocDir:            alloc,
		StdoutPath:          fifos[0],
		StderrPath:          fifos[1],
		TaskGroupName:       "group",
		JobName:             "job",
		JobId:               "job",
		AllocId:             fmt.Sprintf("4f6a9a4e-0000-4000-8000-%012d", h.next),
		Namespace:           "default",
		NodeName:            "node",
		NodeId:              "node",
		Resources: &pb.Resources{
			AllocatedResources: &pb.AllocatedTaskResources{
				Cpu:    &pb.AllocatedCpuResources{CpuShares: 100},
				Memory: &pb.AllocatedMemoryResources{MemoryMb: 64},
			},
			LinuxResources: &pb.LinuxResources{CpuShares: 100, MemoryLimitBytes: 64 << 20},
		},
	}, readers[0]
}

func (h *host) start(script string) (*pb.TaskConfig, *pb.TaskHandle, *os.File) {
	config, output := h.task(script, nil)
	return config, h.run(config), output
}

func (h *host) run(config *pb.TaskConfig) *pb.TaskHandle {
	answer := h.attempt(config)
	if answer.Result != pb.StartTaskResponse_SUCCESS {
		fail("StartTask: %v: %s", answer.Result, answer.DriverErrorMsg)
	}
	undo = append(undo, func() {
		// Most are gone.
		h.driver.tasks.DestroyTask(deadline(), &pb.DestroyTaskRequest{TaskId: config.Id, Force: true})
	})
	return answer.Handle
}

func (h *host) attempt(config *pb.TaskConfig) *pb.StartTaskResponse {
	answer, err := h.driver.tasks.StartTask(deadline(), &pb.StartTaskRequest{Task: config})
	must("StartTask", err)
	return answer
}

func (h *host) wait(config *pb.TaskConfig) *pb.ExitResult {
	answer, err := h.driver.tasks.WaitTask(deadline(), &pb.WaitTaskRequest{TaskId: config.Id})
	must("WaitTask", err)
	if answer.Err != "" {
		fail("WaitTask: %s", answer.Err)
	}
	return answer.Result
}

func (h *host) destroy(config *pb.TaskConfig) {
	_, err := h.driver.tasks.DestroyTask(deadline(), &pb.DestroyTaskRequest{TaskId: config.Id, Force: true})
	must("DestroyTask", err)
	_, err = h.driver.tasks.WaitTask(deadline(), &pb.WaitTaskRequest{TaskId: config.Id})
	if err == nil || !strings.Contains(err.Error(), "task not found for given id") {
		fail("WaitTask after DestroyTask: %v", err)
	}
}

// reads returns what the task printed, as soon as it ends with wanted.
func reads(output *os.File, wanted string) string {
	text := []byte{}
	part := make([]byte, 4096)
	end := time.Now().Add(patience)
	must("deadline", output.SetReadDeadline(end))
	for !bytes.HasSuffix(text, []byte(wanted)) {
		if time.Now().After(end) {
			fail("the task printed %q, not %q", text, wanted)
		}
		count, err := output.Read(part)
		text = append(text, part[:count]...)
		if count == 0 || (err != nil && err != io.EOF) {
			time.Sleep(5 * time.Millisecond)
		}
	}
	return string(text)
}

func (h *host) exits() {
	config, _, output := h.start("echo hello from $NOMAD_TASK_NAME; exit 7")
	reads(output, "hello from "+config.Name+"\n")
	if result := h.wait(config); result.ExitCode != 7 || result.Signal != 0 {
		fail("the task ended with %v", result)
	}
	status, err := h.driver.tasks.InspectTask(deadline(), &pb.InspectTaskRequest{TaskId: config.Id})
	must("InspectTask", err)
	if status.Task.State != pb.TaskState_EXITED || status.Task.CompletedAt == nil {
		fail("InspectTask: %v", status)
	}
	h.destroy(config)
	say("starts, prints, exits")

	broken, _ := h.task("", map[string]interface{}{"command": "no-such-command"})
	answer := h.attempt(broken)
	if answer.Result != pb.StartTaskResponse_FATAL || !strings.Contains(answer.DriverErrorMsg, "no-such-command") {
		fail("a task without a command: %v", answer)
	}
	say("refuses what cannot start")
}

func (h *host) stops() {
	config, _, output := h.start("trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
	reads(output, "ready\n")
	_, err := h.driver.tasks.StopTask(deadline(), &pb.StopTaskRequest{
		TaskId:  config.Id,
		Timeout: ptypes.DurationProto(patience),
		Signal:  "SIGTERM",
	})
	must("StopTask", err)
	reads(output, "bye\n")
	if result := h.wait(config); result.ExitCode != 3 {
		fail("the stopped task ended with %v", result)
	}
	h.destroy(config)

	config, _, output = h.start("trap '' TERM; echo ready; while :; do sleep 0.05; done")
	reads(output, "ready\n")
	events, err := h.driver.tasks.TaskEvents(deadline(), &pb.TaskEventsRequest{})
	must("TaskEvents", err)
	_, err = events.Header()
	must("TaskEvents", err)
	_, err = h.driver.tasks.StopTask(deadline(), &pb.StopTaskRequest{
		TaskId:  config.Id,
		Timeout: ptypes.DurationProto(100 * time.Millisecond),
		Signal:  "SIGTERM",
	})
	must("StopTask", err)
	if result := h.wait(config); result.Signal != int32(syscall.SIGKILL) {
		fail("the stubborn task ended with %v", result)
	}
	event, err := events.Recv()
	must("TaskEvents", err)
	if event.AllocId != config.AllocId || event.TaskName != config.Name || event.Timestamp == nil {
		fail("the event is %v", event)
	}
	h.destroy(config)
	say("stops, and kills what does not stop")
}

func (h *host) signals() {
	config, _, output := h.start("trap 'echo usr1' USR1; echo ready; while :; do sleep 0.05; done")
	reads(output, "ready\n")
	_, err := h.driver.tasks.SignalTask(deadline(), &pb.SignalTaskRequest{TaskId: config.Id, Signal: "SIGUSR1"})
	must("SignalTask", err)
	reads(output, "usr1\n")
	_, err = h.driver.tasks.SignalTask(deadline(), &pb.SignalTaskRequest{TaskId: config.Id, Signal: "SIGNOTHING"})
	if err == nil {
		fail("a signal that is none was sent")
	}
	h.destroy(config)
	say("signals")
}

func (h *host) execs() {
	config, _, output := h.start("echo ready; exec sleep 600")
	reads(output, "ready\n")
	answer, err := h.driver.tasks.ExecTask(deadline(), &pb.ExecTaskRequest{
		TaskId:  config.Id,
		Command: []string{"/bin/sh", "-c", "echo out; echo err >&2; exit 4"},
		Timeout: ptypes.DurationProto(patience),
	})
	must("ExecTask", err)
	if string(answer.Stdout) != "out\n" || string(answer.Stderr) != "err\n" || answer.Result.ExitCode != 4 {
		fail("ExecTask: %v", answer)
	}
	h.destroy(config)
	say("runs commands in tasks")
}

// session is a command whose input and output are streams.
type session struct {
	stream pb.Driver_ExecTaskStreamingClient
	stdout []byte
	stderr []byte
	exited *pb.ExitResult
}

func (h *host) open(config *pb.TaskConfig, tty bool, script string) *session {
	stream, err := h.driver.tasks.ExecTaskStreaming(deadline())
	must("ExecTaskStreaming", err)
	s := &session{stream: stream}
	s.send(&pb.ExecTaskStreamingRequest{Setup: &pb.ExecTaskStreamingRequest_Setup{
		TaskId:  config.Id,
		Command: []string{"/bin/sh", "-c", script},
		Tty:     tty,
	}})
	return s
}

func (s *session) send(message *pb.ExecTaskStreamingRequest) {
	must("ExecTaskStreaming", s.stream.Send(message))
}

func (s *session) write(text string) {
	s.send(&pb.ExecTaskStreamingRequest{Stdin: &pb.ExecTaskStreamingIOOperation{Data: []byte(text)}})
}

func (s *session) resize(height, width int32) {
	size := &pb.ExecTaskStreamingRequest_TerminalSize{Height: height, Width: width}
	s.send(&pb.ExecTaskStreamingRequest{TtySize: size})
}

// receive takes one message; false at the end.
func (s *session) receive() bool {
	message, err := s.stream.Recv()
	if err == io.EOF {
		return false
	}
	must("ExecTaskStreaming", err)
	s.stdout = append(s.stdout, message.GetStdout().GetData()...)
	s.stderr = append(s.stderr, message.GetStderr().GetData()...)
	if message.Exited {
		s.exited = message.Result
	}
	return true
}

func (s *session) reads(wanted string) {
	for !bytes.Contains(s.stdout, []byte(wanted)) {
		if !s.receive() {
			fail("the session ended before %q: %q, %q", wanted, s.stdout, s.stderr)
		}
	}
}

// ends takes what is left, and checks how the command ended.
func (s *session) ends(code int32) {
	for s.receive() {
	}
	if s.exited == nil || s.exited.ExitCode != code || s.exited.Signal != 0 {
		fail("the session ended with %v: %q, %q", s.exited, s.stdout, s.stderr)
	}
}

// sessions checks a command without a terminal: it gets its input until that is closed, its outputs
// stay apart, and its exit code comes.
func (h *host) sessions() {
	config, _, output := h.start("echo ready; exec sleep 600")
	reads(output, "ready\n")
	s := h.open(config, false, "cat; echo over >&2; exit 9")
	s.write("first ")
	s.reads("first ")
	s.write("second")
	s.send(&pb.ExecTaskStreamingRequest{Stdin: &pb.ExecTaskStreamingIOOperation{Close: true}})
	s.ends(9)
	if string(s.stdout) != "first second" || string(s.stderr) != "over\n" {
		fail("the session's outputs are %q and %q", s.stdout, s.stderr)
	}
	h.destroy(config)
	say("runs a session with input, two outputs and an exit code")
}

// terminals checks a command with a terminal, which has the size that it was last given.
func (h *host) terminals() {
	config, _, output := h.start("echo ready; exec sleep 600")
	reads(output, "ready\n")
	s := h.open(config, true, "tty; while read -r line; do stty size; done; exit 5")
	s.reads("/dev/pts/")
	for _, size := range [][2]int32{{24, 80}, {51, 133}} {
		s.resize(size[0], size[1])
		s.write("\n")
		s.reads(fmt.Sprintf("%d %d", size[0], size[1]))
	}
	s.write("\x04")
	s.ends(5)
	if len(s.stderr) != 0 {
		fail("a terminal has one output, and this is another: %q", s.stderr)
	}
	h.destroy(config)
	say("runs a session with a terminal, and resizes it")
}

// networks checks that a task is in the network namespace that the host made for its allocation.
func (h *host) networks() {
	// Before there is another, which may be that of the process's first thread.
	own, err := os.Readlink("/proc/self/ns/net")
	must("namespace", err)
	namespace := make(chan string)
	over := make(chan struct{})
	go func() {
		// The thread has the namespace, and ends with this function because it is still locked.
		runtime.LockOSThread()
		must("unshare", syscall.Unshare(syscall.CLONE_NEWNET))
		namespace <- fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), syscall.Gettid())
		<-over
	}()
	path := <-namespace
	made, err := os.Readlink(path)
	must("namespace", err)
	if made == own {
		fail("no network namespace was made")
	}

	script := "readlink /proc/self/ns/net; exec sleep 600"
	config, output := h.task(script, nil)
	config.NetworkIsolationSpec = &pb.NetworkIsolationSpec{
		Mode: pb.NetworkIsolationSpec_GROUP,
		Path: path,
	}
	h.run(config)
	reads(output, made+"\n")
	beside, err := h.driver.tasks.ExecTask(deadline(), &pb.ExecTaskRequest{
		TaskId:  config.Id,
		Command: []string{"readlink", "/proc/self/ns/net"},
		Timeout: ptypes.DurationProto(patience),
	})
	must("ExecTask", err)
	if string(beside.Stdout) != made+"\n" {
		fail("a command in the task is in %q, the task in %q", beside.Stdout, made)
	}
	h.destroy(config)

	config, output = h.task(script, nil)
	h.run(config)
	reads(output, own+"\n")
	h.destroy(config)

	config, _ = h.task(script, nil)
	config.NetworkIsolationSpec = &pb.NetworkIsolationSpec{
		Mode: pb.NetworkIsolationSpec_GROUP,
		Path: filepath.Join(h.dir, "no-such-namespace"),
	}
	answer := h.attempt(config)
	if answer.Result != pb.StartTaskResponse_FATAL || !strings.Contains(answer.DriverErrorMsg, "no-such-namespace") {
		fail("a task in a namespace that is not there: %v", answer)
	}
	close(over)
	say("puts a task into the network that the host made")
}

// configures checks that the driver does what its configuration says, and that a wrong one is
// refused by its field and changes nothing.
func (h *host) configures() {
	raw := map[string]interface{}{"isolation": "raw"}
	config, _ := h.task("exit 0", raw)
	answer := h.attempt(config)
	if answer.Result != pb.StartTaskResponse_FATAL || !strings.Contains(answer.DriverErrorMsg, "allow_raw") {
		fail("a raw task on a node that allows none: %v", answer)
	}

	must("SetConfig", h.configure(map[string]interface{}{
		"allow_raw":    true,
		"allow_caps":   []string{"CHOWN"},
		"allow_uid0":   nil,
		"default_user": "daemon",
	}))
	for _, wrong := range []struct {
		field string
		value interface{}
	}{
		{"allow_raw", "perhaps"},
		{"allow_caps", []string{"FLY"}},
		{"allow_paths", []string{"relative"}},
		{"default_user", 7},
		{"greeting", "hi"},
	} {
		err := h.configure(map[string]interface{}{wrong.field: wrong.value})
		if err == nil || !strings.Contains(err.Error(), "`config."+wrong.field) {
			fail("SetConfig with %s = %v: %v", wrong.field, wrong.value, err)
		}
	}

	own, err := os.Readlink("/proc/self/ns/pid")
	must("namespace", err)
	config, output := h.task("readlink /proc/self/ns/pid", raw)
	h.run(config)
	reads(output, own+"\n")
	h.wait(config)
	h.destroy(config)
	config, _, output = h.start("id -un")
	reads(output, "daemon\n")
	h.wait(config)
	h.destroy(config)
	say("does what it was configured to do")
	h.introduce()
}

func (h *host) measures() {
	config, _, output := h.start("echo ready; exec sleep 600")
	reads(output, "ready\n")
	stream, err := h.driver.tasks.TaskStats(deadline(), &pb.TaskStatsRequest{
		TaskId:             config.Id,
		CollectionInterval: ptypes.DurationProto(50 * time.Millisecond),
	})
	must("TaskStats", err)
	for i := 0; i < 3; i++ {
		item, err := stream.Recv()
		must("TaskStats", err)
		if item.Stats.Id != config.Id || item.Stats.Timestamp == nil || item.Stats.AggResourceUsage == nil {
			fail("TaskStats: %v", item)
		}
	}
	h.destroy(config)
	say("measures")
}

// resolves checks that a task asks the name servers that its host says.
func (h *host) resolves() {
	config, output := h.task("cat /etc/resolv.conf; echo end", nil)
	config.Dns = &pb.DNSConfig{Servers: []string{"10.9.0.53"}, Searches: []string{"lab"}}
	h.run(config)
	text := reads(output, "end\n")
	for _, line := range []string{"nameserver 10.9.0.53\n", "search lab\n"} {
		if !strings.Contains(text, line) {
			fail("the task's resolv.conf has no %q: %s", line, text)
		}
	}
	h.destroy(config)
	say("gives tasks their name servers")
}

// group makes a group of cgroup v2 for a task, as Nomad does; empty where there is none.
func group(name string) string {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must("mounts", err)
	own, err := os.ReadFile("/proc/self/cgroup")
	must("own group", err)
	for _, mount := range strings.Split(string(mounts), "\n") {
		if !strings.Contains(mount, " - cgroup2 ") {
			continue
		}
		for _, line := range strings.Split(string(own), "\n") {
			if strings.HasPrefix(line, "0::") {
				dir := filepath.Join(strings.Fields(mount)[4], line[3:], fmt.Sprintf("%s-%d.scope", name, os.Getpid()))
				if os.Mkdir(dir, 0o755) == nil {
					return dir
				}
			}
		}
	}
	return ""
}

// survives checks that a host which comes back finds the plugin, and that a plugin which died gets
// its tasks back.
func (h *host) survives(client *plugin.Client) {
	config, output := h.task("setsid sleep 600 & echo ready; exec sleep 600", nil)
	named := group(config.Name)
	config.Resources.LinuxResources.CpusetCgroup = named
	handle := h.run(config)
	reads(output, "ready\n")
	before := h.pid(config)
	if named != "" {
		procs, err := os.ReadFile(filepath.Join(named, "cgroup.procs"))
		must("the named group", err)
		if !strings.Contains("\n"+string(procs), "\n"+before+"\n") {
			fail("the task %s is not in the group that its host names: %q", before, procs)
		}
	}
	// Nomad keeps no field that it does not know.
	handle.Config.Cgroup = nil
	_, reattached := h.launch(client.ReattachConfig())
	if h.pid(config) != before {
		fail("the task has another process for a host that came back")
	}
	say("is found by a host that comes back")

	must("kill", syscall.Kill(reattached.Pid, syscall.SIGKILL))
	for end := time.Now().Add(patience); !client.Exited(); {
		if time.Now().After(end) {
			fail("the plugin does not die")
		}
		time.Sleep(5 * time.Millisecond)
	}
	next, _ := h.launch(nil)
	h.introduce()
	_, err := h.driver.tasks.InspectTask(deadline(), &pb.InspectTaskRequest{TaskId: config.Id})
	if err == nil {
		fail("a new plugin knows a task that nobody told it of")
	}
	_, err = h.driver.tasks.RecoverTask(deadline(), &pb.RecoverTaskRequest{TaskId: config.Id, Handle: handle})
	must("RecoverTask", err)
	if h.pid(config) != before {
		fail("the recovered task has another process")
	}
	h.destroy(config)
	if named != "" {
		must("all of the task is gone from its group", os.Remove(named))
	}
	say("recovers its tasks after a crash")
	h.doubts(next)
}

// doubts checks that the end of a recovered task, whose code its new driver cannot have from the
// kernel, is told as what it was or as a failure, never as a success.
func (h *host) doubts(client *plugin.Client) {
	config, handle, output := h.start("trap 'exit 42' USR1; echo ready; while :; do sleep 0.05; done")
	reads(output, "ready\n")
	must("kill", syscall.Kill(client.ReattachConfig().Pid, syscall.SIGKILL))
	for end := time.Now().Add(patience); !client.Exited(); {
		if time.Now().After(end) {
			fail("the plugin does not die")
		}
		time.Sleep(5 * time.Millisecond)
	}
	next, _ := h.launch(nil)
	h.introduce()
	_, err := h.driver.tasks.RecoverTask(deadline(), &pb.RecoverTaskRequest{TaskId: config.Id, Handle: handle})
	must("RecoverTask", err)
	_, err = h.driver.tasks.SignalTask(deadline(), &pb.SignalTaskRequest{TaskId: config.Id, Signal: "SIGUSR1"})
	must("SignalTask", err)
	answer, err := h.driver.tasks.WaitTask(deadline(), &pb.WaitTaskRequest{TaskId: config.Id})
	must("WaitTask", err)
	// What a host reads that knows nothing of our fields.
	told := answer.Result.ExitCode == 42 && answer.Err == ""
	if !told && (answer.Result.ExitCode == 0 || answer.Err == "") {
		fail("a task that ended with 42 looks like a success: %v", answer)
	}
	status, err := h.driver.tasks.InspectTask(deadline(), &pb.InspectTaskRequest{TaskId: config.Id})
	must("InspectTask", err)
	if status.Task.Result.ExitCode == 0 {
		fail("InspectTask: %v", status)
	}
	h.destroy(config)
	next.Kill()
	say("takes no end that nobody saw for a success")
}

func (h *host) pid(config *pb.TaskConfig) string {
	status, err := h.driver.tasks.InspectTask(deadline(), &pb.InspectTaskRequest{TaskId: config.Id})
	must("InspectTask", err)
	if status.Task.State != pb.TaskState_RUNNING {
		fail("the task does not run: %v", status)
	}
	return status.Driver.Attributes["pid"]
}
