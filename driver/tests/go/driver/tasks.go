package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/golang/protobuf/ptypes"
	hclog "github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"muster.test/msgpack"
	"muster.test/pb"
)

type driver struct {
	logger     hclog.Logger
	registered bool

	lock     sync.Mutex
	greeting      string
	makesNetworks bool
	changesRoot   bool
	runsUsers     bool
	networks      map[string]*pb.NetworkIsolationSpec
	tasks         map[string]*task
	events        map[chan *pb.DriverTaskEvent]bool
}

func newDriver(logger hclog.Logger) *driver {
	return &driver{
		logger:   logger,
		networks: map[string]*pb.NetworkIsolationSpec{},
		tasks:    map[string]*task{},
		events:   map[chan *pb.DriverTaskEvent]bool{},
	}
}

// state is what finds a task again.
type state struct {
	Pid        int
	StartTicks uint64
	StartedAt  time.Time
}

type task struct {
	config  *pb.TaskConfig
	state   state
	done    chan struct{}
	result  *pb.ExitResult
	endedAt time.Time
}

func (t *task) ended() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

func (t *task) signal(number syscall.Signal) {
	if !t.ended() {
		// Everything that the task started, unless it left the group.
		_ = syscall.Kill(-t.state.Pid, number)
	}
}

func startTicks(pid int) (uint64, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	rest := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(rest) < 20 || rest[0] == "Z" || rest[0] == "X" {
		return 0, false
	}
	ticks, err := strconv.ParseUint(rest[19], 10, 64)
	return ticks, err == nil
}

func (d *driver) find(id string) (*task, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	if found, ok := d.tasks[id]; ok {
		return found, nil
	}
	return nil, status.Error(codes.Unknown, notFound)
}

func refused(result pb.StartTaskResponse_Result, err error) (*pb.StartTaskResponse, error) {
	return &pb.StartTaskResponse{Result: result, DriverErrorMsg: err.Error()}, nil
}

func (d *driver) StartTask(_ context.Context, request *pb.StartTaskRequest) (*pb.StartTaskResponse, error) {
	config := request.Task
	decoded, err := msgpack.Decode(config.MsgpackDriverConfig)
	if err != nil {
		return refused(pb.StartTaskResponse_FATAL, err)
	}
	fields, _ := decoded.(map[string]interface{})
	switch fields["refuse"] {
	case "now":
		return refused(pb.StartTaskResponse_RETRY, fmt.Errorf("not now"))
	case "always":
		return refused(pb.StartTaskResponse_FATAL, fmt.Errorf("not ever"))
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	if _, ok := d.tasks[config.Id]; ok {
		return refused(pb.StartTaskResponse_FATAL, fmt.Errorf("task %q is started already", config.Id))
	}
	started, err := d.launch(config, fields)
	if err != nil {
		return refused(pb.StartTaskResponse_FATAL, err)
	}
	d.tasks[config.Id] = started
	driverState, err := json.Marshal(started.state)
	if err != nil {
		return nil, err
	}
	linux := config.GetResources().GetLinuxResources()
	d.logger.Debug("started", "task_id", config.Id, "pid", started.state.Pid,
		"group", linux.GetCpusetCgroup(), "part", linux.GetPercentTicks(),
		"quota", linux.GetCpuQuota(), "period", linux.GetCpuPeriod())
	return &pb.StartTaskResponse{
		Result: pb.StartTaskResponse_SUCCESS,
		Handle: &pb.TaskHandle{
			Version:     handleVersion,
			Config:      config,
			State:       pb.TaskState_RUNNING,
			DriverState: driverState,
		},
	}, nil
}

func (d *driver) launch(config *pb.TaskConfig, fields map[string]interface{}) (*task, error) {
	command, _ := fields["command"].(string)
	args := []string{}
	list, _ := fields["args"].([]interface{})
	for _, item := range list {
		text, _ := item.(string)
		args = append(args, text)
	}
	command, args = inNetwork(config, command, args)
	process := exec.Command(command, args...)
	process.Env = environment(config)
	if labels, _ := fields["label"].(map[string]interface{}); labels != nil {
		for name, label := range labels {
			value, _ := label.(map[string]interface{})["value"].(string)
			process.Env = append(process.Env, "LABEL_"+name+"="+value)
		}
	}
	if config.AllocDir != "" {
		process.Dir = filepath.Join(config.AllocDir, config.Name)
	}
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if number := strings.TrimPrefix(config.User, "nomad-"); d.runsUsers && number != config.User {
		id, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %q: %v", config.User, err)
		}
		process.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(id), Gid: uint32(id)}
	}
	if d.changesRoot {
		process.SysProcAttr.Chroot = process.Dir
		process.Dir = "/"
	}
	for _, output := range []struct {
		path string
		file *io.Writer
	}{{config.StdoutPath, &process.Stdout}, {config.StderrPath, &process.Stderr}} {
		if output.path == "" {
			continue
		}
		file, err := os.OpenFile(output.path, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		*output.file = file
	}
	if err := process.Start(); err != nil {
		return nil, err
	}
	ticks, _ := startTicks(process.Process.Pid)
	started := &task{
		config: config,
		state:  state{Pid: process.Process.Pid, StartTicks: ticks, StartedAt: time.Now()},
		done:   make(chan struct{}),
	}
	go func() {
		_ = process.Wait()
		result := &pb.ExitResult{}
		waited := process.ProcessState.Sys().(syscall.WaitStatus)
		if waited.Signaled() {
			result.Signal = int32(waited.Signal())
		} else {
			result.ExitCode = int32(waited.ExitStatus())
		}
		started.end(result)
	}()
	return started, nil
}

func (t *task) end(result *pb.ExitResult) {
	t.result = result
	t.endedAt = time.Now()
	close(t.done)
}

func (d *driver) RecoverTask(_ context.Context, request *pb.RecoverTaskRequest) (*pb.RecoverTaskResponse, error) {
	handle := request.Handle
	d.lock.Lock()
	defer d.lock.Unlock()
	if _, ok := d.tasks[request.TaskId]; ok {
		return &pb.RecoverTaskResponse{}, nil
	}
	if handle.Version != handleVersion {
		return nil, fmt.Errorf("handle version %d is not known", handle.Version)
	}
	var known state
	if err := json.Unmarshal(handle.DriverState, &known); err != nil {
		return nil, fmt.Errorf("the handle cannot be read: %v", err)
	}
	if ticks, ok := startTicks(known.Pid); !ok || ticks != known.StartTicks {
		return nil, fmt.Errorf("process %d is gone", known.Pid)
	}
	recovered := &task{config: handle.Config, state: known, done: make(chan struct{})}
	d.tasks[request.TaskId] = recovered
	go func() {
		// It is no child of this process: how it ends is not known, only when.
		for {
			if ticks, ok := startTicks(known.Pid); !ok || ticks != known.StartTicks {
				recovered.end(&pb.ExitResult{ExitCode: -1})
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	d.logger.Info("recovered", "task_id", request.TaskId, "pid", known.Pid)
	return &pb.RecoverTaskResponse{}, nil
}

func (d *driver) WaitTask(ctx context.Context, request *pb.WaitTaskRequest) (*pb.WaitTaskResponse, error) {
	found, err := d.find(request.TaskId)
	if err != nil {
		return nil, err
	}
	select {
	case <-found.done:
		return &pb.WaitTaskResponse{Result: found.result}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

var signals = map[string]syscall.Signal{
	"": syscall.SIGINT, "SIGINT": syscall.SIGINT, "SIGTERM": syscall.SIGTERM, "SIGHUP": syscall.SIGHUP,
	"SIGKILL": syscall.SIGKILL, "SIGUSR1": syscall.SIGUSR1, "SIGUSR2": syscall.SIGUSR2,
}

func (d *driver) StopTask(_ context.Context, request *pb.StopTaskRequest) (*pb.StopTaskResponse, error) {
	found, err := d.find(request.TaskId)
	if err != nil {
		return nil, err
	}
	number, ok := signals[request.Signal]
	if !ok {
		return nil, fmt.Errorf("signal %q is not known", request.Signal)
	}
	timeout, err := ptypes.Duration(request.Timeout)
	if err != nil {
		return nil, err
	}
	found.signal(number)
	select {
	case <-found.done:
	case <-time.After(timeout):
		found.signal(syscall.SIGKILL)
		d.tell(found.config, "did not end in time; killed")
		<-found.done
	}
	return &pb.StopTaskResponse{}, nil
}

func (d *driver) DestroyTask(_ context.Context, request *pb.DestroyTaskRequest) (*pb.DestroyTaskResponse, error) {
	found, err := d.find(request.TaskId)
	if err != nil {
		return nil, err
	}
	if !found.ended() {
		if !request.Force {
			return nil, fmt.Errorf("task %q is still running", request.TaskId)
		}
		found.signal(syscall.SIGKILL)
		<-found.done
	}
	d.lock.Lock()
	delete(d.tasks, request.TaskId)
	d.lock.Unlock()
	return &pb.DestroyTaskResponse{}, nil
}

func (d *driver) InspectTask(_ context.Context, request *pb.InspectTaskRequest) (*pb.InspectTaskResponse, error) {
	found, err := d.find(request.TaskId)
	if err != nil {
		return nil, err
	}
	started, _ := ptypes.TimestampProto(found.state.StartedAt)
	answer := &pb.TaskStatus{
		Id:        request.TaskId,
		Name:      found.config.Name,
		State:     pb.TaskState_RUNNING,
		StartedAt: started,
	}
	if found.ended() {
		answer.State = pb.TaskState_EXITED
		answer.CompletedAt, _ = ptypes.TimestampProto(found.endedAt)
		answer.Result = found.result
	}
	attributes := map[string]string{"pid": strconv.Itoa(found.state.Pid)}
	return &pb.InspectTaskResponse{
		Task:   answer,
		Driver: &pb.TaskDriverStatus{Attributes: attributes},
	}, nil
}

func (d *driver) TaskStats(request *pb.TaskStatsRequest, stream pb.Driver_TaskStatsServer) error {
	found, err := d.find(request.TaskId)
	if err != nil {
		return err
	}
	interval, err := ptypes.Duration(request.CollectionInterval)
	if err != nil {
		return err
	}
	for {
		err := stream.Send(&pb.TaskStatsResponse{Stats: &pb.TaskStats{
			Id:        request.TaskId,
			Timestamp: ptypes.TimestampNow(),
			AggResourceUsage: &pb.TaskResourceUsage{
				// What is no cache is always the same; swap tells lives of the driver apart.
				Memory: &pb.MemoryUsage{
					Rss:            4096,
					Swap:           uint64(os.Getpid()),
					MeasuredFields: []pb.MemoryUsage_Fields{pb.MemoryUsage_RSS, pb.MemoryUsage_SWAP},
				},
			},
		}})
		if err != nil {
			return err
		}
		select {
		case <-found.done:
			return nil
		case <-stream.Context().Done():
			return nil
		case <-time.After(interval):
		}
	}
}

func (d *driver) tell(config *pb.TaskConfig, message string) {
	event := &pb.DriverTaskEvent{
		TaskId:    config.Id,
		AllocId:   config.AllocId,
		TaskName:  config.Name,
		Timestamp: ptypes.TimestampNow(),
		Message:   message,
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	for listener := range d.events {
		select {
		case listener <- event:
		default:
		}
	}
}

func (d *driver) TaskEvents(_ *pb.TaskEventsRequest, stream pb.Driver_TaskEventsServer) error {
	listener := make(chan *pb.DriverTaskEvent, 64)
	d.lock.Lock()
	d.events[listener] = true
	d.lock.Unlock()
	defer func() {
		d.lock.Lock()
		delete(d.events, listener)
		d.lock.Unlock()
	}()
	for {
		select {
		case event := <-listener:
			if err := stream.Send(event); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (d *driver) SignalTask(_ context.Context, request *pb.SignalTaskRequest) (*pb.SignalTaskResponse, error) {
	found, err := d.find(request.TaskId)
	if err != nil {
		return nil, err
	}
	number, ok := signals[request.Signal]
	if !ok || request.Signal == "" {
		return nil, fmt.Errorf("signal %q is not known", request.Signal)
	}
	if found.ended() {
		return nil, fmt.Errorf("task %q is not running", request.TaskId)
	}
	found.signal(number)
	return &pb.SignalTaskResponse{}, nil
}

func (d *driver) command(ctx context.Context, id string, command []string) (*exec.Cmd, error) {
	found, err := d.find(id)
	if err != nil {
		return nil, err
	}
	if found.ended() {
		return nil, fmt.Errorf("task %q is not running", id)
	}
	process := exec.CommandContext(ctx, command[0], command[1:]...)
	process.Env = environment(found.config)
	return process, nil
}

func exitOf(process *exec.Cmd) *pb.ExitResult {
	if process.ProcessState == nil {
		return &pb.ExitResult{ExitCode: 127}
	}
	waited := process.ProcessState.Sys().(syscall.WaitStatus)
	if waited.Signaled() {
		return &pb.ExitResult{Signal: int32(waited.Signal())}
	}
	return &pb.ExitResult{ExitCode: int32(waited.ExitStatus())}
}

func (d *driver) ExecTask(ctx context.Context, request *pb.ExecTaskRequest) (*pb.ExecTaskResponse, error) {
	timeout, err := ptypes.Duration(request.Timeout)
	if err != nil {
		return nil, err
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	process, err := d.command(ctx, request.TaskId, request.Command)
	if err != nil {
		return nil, err
	}
	var stdout, stderr bytes.Buffer
	process.Stdout, process.Stderr = &stdout, &stderr
	_ = process.Run()
	return &pb.ExecTaskResponse{
		Stdout: stdout.Bytes(),
		Stderr: stderr.Bytes(),
		Result: exitOf(process),
	}, nil
}

// sender makes one writer of a stream's direction; the stream takes one message at a time.
type sender struct {
	lock   *sync.Mutex
	stream pb.Driver_ExecTaskStreamingServer
	stderr bool
}

func (s sender) Write(data []byte) (int, error) {
	part := &pb.ExecTaskStreamingIOOperation{Data: append([]byte{}, data...)}
	message := &pb.ExecTaskStreamingResponse{Stdout: part}
	if s.stderr {
		message = &pb.ExecTaskStreamingResponse{Stderr: part}
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	return len(data), s.stream.Send(message)
}

func (d *driver) ExecTaskStreaming(stream pb.Driver_ExecTaskStreamingServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.Setup == nil {
		return fmt.Errorf("exec does not begin with its setup")
	}
	if first.Setup.Tty {
		return status.Error(codes.Unimplemented, "no terminals")
	}
	process, err := d.command(stream.Context(), first.Setup.TaskId, first.Setup.Command)
	if err != nil {
		return err
	}
	input, err := process.StdinPipe()
	if err != nil {
		return err
	}
	lock := &sync.Mutex{}
	process.Stdout = sender{lock: lock, stream: stream}
	process.Stderr = sender{lock: lock, stream: stream, stderr: true}
	if err := process.Start(); err != nil {
		return err
	}
	go func() {
		defer input.Close()
		for {
			message, err := stream.Recv()
			if err != nil || (message.Stdin != nil && message.Stdin.Close) {
				return
			}
			if message.Stdin != nil {
				if _, err := input.Write(message.Stdin.Data); err != nil {
					return
				}
			}
		}
	}()
	_ = process.Wait()
	lock.Lock()
	defer lock.Unlock()
	return stream.Send(&pb.ExecTaskStreamingResponse{Exited: true, Result: exitOf(process)})
}
