package node

import (
	"fmt"
	"os"
	"text/template"
)

// containerdConfig is for containerd 1.6 and later. restrict_oom_score_adj is for a lab without CAP_SYS_RESOURCE. There
// the kernel lets no process get a lower oom_score_adj than its parent. Without the setting runc fails with "can't get
// final child's PID from pipe".
var containerdConfig = template.Must(template.New("containerd").Parse(`version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp"]

[grpc]
  address = "{{.Socket}}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{{.Sandbox}}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
`))

func (c Config) writeContainerdConfig() error {
	file, err := os.Create(c.path("containerd.toml"))
	if err != nil {
		return fmt.Errorf("create containerd's configuration: %w", err)
	}
	defer file.Close()
	err = containerdConfig.Execute(file, struct{ Socket, Sandbox string }{containerdSocket, SandboxImage})
	if err != nil {
		return fmt.Errorf("write containerd's configuration: %w", err)
	}
	return file.Close()
}
