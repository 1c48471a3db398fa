// A task driver in another language, for tests: it runs commands as plain processes. Everything
// between it and its host is the plugin library's and generated from the .proto files.
package main

import (
	"context"
	"fmt"
	"os"

	hclog "github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"muster.test/msgpack"
	"muster.test/pb"
)

// Handles of this version are understood, and no others.
const handleVersion = 1

const notFound = "task not found for given id"

var handshake = plugin.HandshakeConfig{
	MagicCookieKey:   "NOMAD_PLUGIN_MAGIC_COOKIE",
	MagicCookieValue: "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255",
	ProtocolVersion:  2,
}

func main() {
	logger := hclog.New(&hclog.LoggerOptions{
		Name:       "gotest",
		Level:      hclog.Trace,
		JSONFormat: true,
		Output:     os.Stderr,
	})
	driver := newDriver(logger)
	plugins := plugin.PluginSet{"base": &served{driver: driver}, "driver": &served{driver: driver}}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig:  handshake,
		VersionedPlugins: map[int]plugin.PluginSet{2: plugins},
		GRPCServer:       plugin.DefaultGRPCServer,
		Logger:           logger,
	})
}

// served registers the services once, under whichever name the host asks for.
type served struct {
	plugin.NetRPCUnsupportedPlugin
	driver *driver
}

func (s *served) GRPCServer(_ *plugin.GRPCBroker, server *grpc.Server) error {
	if !s.driver.registered {
		s.driver.registered = true
		pb.RegisterBasePluginServer(server, s.driver)
		pb.RegisterDriverServer(server, s.driver)
	}
	return nil
}

func (s *served) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (interface{}, error) {
	return nil, status.Error(codes.Unimplemented, "this is a driver, not a host")
}

func (d *driver) PluginInfo(context.Context, *pb.PluginInfoRequest) (*pb.PluginInfoResponse, error) {
	return &pb.PluginInfoResponse{
		Type:              pb.PluginType_DRIVER,
		PluginApiVersions: []string{"v0.1.0"},
		PluginVersion:     "0.0.1",
		Name:              "gotest",
	}, nil
}

func (d *driver) ConfigSchema(context.Context, *pb.ConfigSchemaRequest) (*pb.ConfigSchemaResponse, error) {
	return &pb.ConfigSchemaResponse{Spec: object(map[string]*pb.Spec{
		"greeting": defaulted(attr("greeting", "string", false), `"hello"`),
		"enabled":  attr("enabled", "bool", false),
		"networks": attr("networks", "bool", false),
		"chroot":   attr("chroot", "bool", false),
		"users":    attr("users", "bool", false),
	})}, nil
}

func (d *driver) SetConfig(_ context.Context, request *pb.SetConfigRequest) (*pb.SetConfigResponse, error) {
	// Some drivers compute with what their host has, and are of no use to one that does not say it.
	host := request.GetNomadConfig().GetDriver()
	if host.GetTopology() == nil {
		return nil, status.Error(codes.InvalidArgument, "the host does not say what machine it is")
	}
	compute := uint64(0)
	for _, core := range host.Topology.Cores {
		compute += core.GuessSpeed
	}
	decoded, err := msgpack.Decode(request.MsgpackConfig)
	if err != nil {
		return nil, err
	}
	config, _ := decoded.(map[string]interface{})
	d.lock.Lock()
	d.greeting, _ = config["greeting"].(string)
	d.makesNetworks, _ = config["networks"].(bool)
	d.changesRoot, _ = config["chroot"].(bool)
	d.runsUsers, _ = config["users"].(bool)
	d.lock.Unlock()
	d.logger.Info("configured", "greeting", config["greeting"], "enabled", config["enabled"],
		"compute", compute, "ports", fmt.Sprintf("%d-%d", host.ClientMinPort, host.ClientMaxPort))
	return &pb.SetConfigResponse{}, nil
}

func (d *driver) TaskConfigSchema(context.Context, *pb.TaskConfigSchemaRequest) (*pb.TaskConfigSchemaResponse, error) {
	return &pb.TaskConfigSchemaResponse{Spec: object(map[string]*pb.Spec{
		"command": attr("command", "string", true),
		"args":    attr("args", "list(string)", false),
		"refuse":  defaulted(attr("refuse", "string", false), `""`),
		"label": {Block: &pb.Spec_BlockMap{BlockMap: &pb.BlockMap{
			Name:   "label",
			Labels: []string{"name"},
			Nested: object(map[string]*pb.Spec{"value": attr("value", "string", true)}),
		}}},
		"limits": {Block: &pb.Spec_BlockValue{BlockValue: &pb.Block{
			Name:   "limits",
			Nested: object(map[string]*pb.Spec{"files": attr("files", "number", false)}),
		}}},
	})}, nil
}

func (d *driver) Capabilities(context.Context, *pb.CapabilitiesRequest) (*pb.CapabilitiesResponse, error) {
	capabilities := &pb.DriverCapabilities{SendSignals: true, Exec: true}
	d.lock.Lock()
	defer d.lock.Unlock()
	capabilities.DynamicWorkloadUsers = d.runsUsers
	if d.changesRoot {
		capabilities.FsIsolation = pb.DriverCapabilities_CHROOT
	}
	if d.makesNetworks {
		capabilities.MustCreateNetwork = true
		capabilities.NetworkIsolationModes = []pb.NetworkIsolationSpec_NetworkIsolationMode{
			pb.NetworkIsolationSpec_HOST, pb.NetworkIsolationSpec_GROUP,
		}
	}
	return &pb.CapabilitiesResponse{Capabilities: capabilities}, nil
}

func (d *driver) Fingerprint(_ *pb.FingerprintRequest, stream pb.Driver_FingerprintServer) error {
	d.lock.Lock()
	greeting := d.greeting
	d.lock.Unlock()
	err := stream.Send(&pb.FingerprintResponse{
		Attributes: map[string]*pb.Attribute{
			"driver.gotest.version":  {Value: &pb.Attribute_StringVal{StringVal: "0.0.1"}},
			"driver.gotest.greeting": {Value: &pb.Attribute_StringVal{StringVal: greeting}},
		},
		Health:            pb.FingerprintResponse_HEALTHY,
		HealthDescription: "ready",
	})
	if err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Shutdown is for hosts that ask the driver and not the process.
func (d *driver) Shutdown(context.Context, *pb.ShutdownRequest) (*pb.ShutdownResponse, error) {
	return &pb.ShutdownResponse{}, nil
}

func object(fields map[string]*pb.Spec) *pb.Spec {
	return &pb.Spec{Block: &pb.Spec_Object{Object: &pb.Object{Attributes: fields}}}
}

func attr(name, kind string, required bool) *pb.Spec {
	return &pb.Spec{Block: &pb.Spec_Attr{Attr: &pb.Attr{Name: name, Type: kind, Required: required}}}
}

func defaulted(primary *pb.Spec, literal string) *pb.Spec {
	return &pb.Spec{Block: &pb.Spec_Default{Default: &pb.Default{
		Primary: primary,
		Default: &pb.Spec{Block: &pb.Spec_Literal{Literal: &pb.Literal{Value: literal}}},
	}}}
}

func environment(config *pb.TaskConfig) []string {
	env := []string{}
	for name, value := range config.Env {
		env = append(env, name+"="+value)
	}
	return env
}

