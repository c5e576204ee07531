package ebpf

import (
	"strings"
	"testing"
)

// TestNodeCgroup: the node is the cgroup above the pods' cgroup of the agent, in the node's mount.
func TestNodeCgroup(t *testing.T) {
	for own, want := range map[string]string{
		"0::/kubepods/burstable/pod1/2\n":                            "/",
		"1:cpu:/x\n0::/kubepods.slice/kubepods-pod1.slice/2.scope\n": "/",
		"0::/lab/node-1/kubepods/pod1/2\n":                           "/lab/node-1",
		"5:cpu:/lab/kubepods/pod1\n0::/system.slice/fairway\n":       "/",
		"0::/\n":    "/",
		"1:cpu:/\n": "/",
	} {
		if got := abovePods(own); got != want {
			t.Errorf("%q: %q, want %q", own, got, want)
		}
	}
	const own, host = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "cgroup2 /host/sys/fs/cgroup/unified cgroup2 ro 0 0\n"
	for mounts, want := range map[string]string{
		own: "/sys/fs/cgroup", own + host: "/host/sys/fs/cgroup/unified", host + own: "/host/sys/fs/cgroup/unified",
		"cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\n": "",
	} {
		if got := cgroupRoot(strings.NewReader(mounts)); got != want {
			t.Errorf("%q: %q, want %q", mounts, got, want)
		}
	}
}
