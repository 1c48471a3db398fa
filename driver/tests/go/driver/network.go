package main

import (
	"context"
	"os/exec"
	"strconv"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"muster.test/pb"
)

// A network is a namespace with a process in it that does nothing, as containers have it. Its labels find the process
// again: the driver itself keeps nothing that another life of it would need.
const (
	holderPid   = "holder_pid"
	holderStart = "holder_start"
)

func (d *driver) CreateNetwork(_ context.Context, request *pb.CreateNetworkRequest) (*pb.CreateNetworkResponse, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	if !d.makesNetworks {
		return nil, status.Error(codes.Unimplemented, "no networks")
	}
	if made, ok := d.networks[request.AllocId]; ok {
		return &pb.CreateNetworkResponse{IsolationSpec: made}, nil
	}
	holder := exec.Command("/bin/sleep", "infinity")
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Setpgid: true}
	if err := holder.Start(); err != nil {
		return nil, err
	}
	go func() { _ = holder.Wait() }()
	pid := holder.Process.Pid
	start, _ := startTicks(pid)
	made := &pb.NetworkIsolationSpec{
		Mode: pb.NetworkIsolationSpec_GROUP,
		Path: "/proc/" + strconv.Itoa(pid) + "/ns/net",
		Labels: map[string]string{
			holderPid:   strconv.Itoa(pid),
			holderStart: strconv.FormatUint(start, 10),
		},
		HostsConfig: &pb.HostsConfig{Hostname: request.Hostname},
	}
	d.networks[request.AllocId] = made
	return &pb.CreateNetworkResponse{IsolationSpec: made, Created: true}, nil
}

func (d *driver) DestroyNetwork(_ context.Context, request *pb.DestroyNetworkRequest) (*pb.DestroyNetworkResponse, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	delete(d.networks, request.AllocId)
	labels := request.IsolationSpec.GetLabels()
	pid, err := strconv.Atoi(labels[holderPid])
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, "the network has no label "+holderPid)
	}
	start, lives := startTicks(pid)
	if lives && strconv.FormatUint(start, 10) == labels[holderStart] {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return nil, err
		}
	}
	return &pb.DestroyNetworkResponse{}, nil
}

// inNetwork is the command within the namespace that the host names for the task.
func inNetwork(config *pb.TaskConfig, command string, args []string) (string, []string) {
	path := config.NetworkIsolationSpec.GetPath()
	if path == "" {
		return command, args
	}
	return "/usr/bin/nsenter", append([]string{"--net=" + path, "--", command}, args...)
}
