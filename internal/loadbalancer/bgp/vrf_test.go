package bgp

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/testing/testnet"
	"github.com/fairway-net/fairway/internal/testing/uml"
)

// inUML tells TestRealVRF that it runs in a kernel that may have VRFs.
const inUML = "FAIRWAY_VRF_IN_UML"

// TestRealVRF: a router in a VRF of the node has a session and routes if the BGPPeer names the VRF, and none
// otherwise. The test runs in user-mode Linux, and skips a kernel there without VRFs.
func TestRealVRF(t *testing.T) {
	if os.Getenv(inUML) == "" {
		runInUML(t)
		return
	}
	r := newRack(t, 1)
	r.router("", "")
	node := r.nodes[0]
	for _, args := range []string{
		"link add red type vrf table 100", "link set red up", "link set eth0 master red",
		// IPv6 addresses are lost when the interface changes its table.
		"addr replace " + node.Addr(false).String() + "/64 dev eth0 nodad",
	} {
		r.run(node.Namespace, "ip", strings.Fields(args)...)
	}
	if out := r.run(node.Namespace, "ip", "route", "show", "table", "main"); strings.Contains(out, "172.18.0.0") {
		t.Fatalf("the network is not the VRF's alone: %s", out)
	}
	r.start(0)
	await(t, node.log.String, "the router cannot be reached")
	r.until(vip4)
	node.world.Peers[0].VRF = "red"
	r.tell(0)
	r.until(vip4, "node-1")
	r.until(vip6, "node-1")
}

// runInUML runs this test in user-mode Linux.
func runInUML(t *testing.T) {
	testnet.NeedRoot(t, "makes links in user-mode Linux, which has the files that the user may read")
	if _, err := exec.LookPath("bird"); err != nil {
		t.Fatal("there is no bird [make deps]")
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var out bytes.Buffer
	status, err := uml.Run(ctx, uml.Options{
		Program: "/bin/sh", Dir: dir, Output: &out,
		Args: []string{"-c", `ip link add red type vrf table 100 || { echo no VRFs; exit 0; }; ip link del red; exec "$0" -test.v -test.run '^TestRealVRF$' -test.timeout 0`, binary},
		Env:  []string{"TMPDIR=/run", "GOMAXPROCS=1", inUML + "=1"}, Virtual: true,
	})
	switch {
	case err == nil && status == 0 && strings.Contains(out.String(), "no VRFs"):
		t.Skip("the kernel of user-mode Linux has no VRFs [it is an older one: rm bin/linux.uml; make uml]")
	case err != nil || status != 0 || !strings.Contains(out.String(), "--- PASS: TestRealVRF"):
		t.Fatalf("status %d, error %v; all of the output:\n%s", status, err, out.String())
	}
}
