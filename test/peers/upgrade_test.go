package peers

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
	"github.com/fairway-net/fairway/test/peers/apiserver"
	"github.com/fairway-net/fairway/test/peers/process"
)

// TestUpgrade replaces the agent of the commit before HEAD with ours, then goes back, then upgrades again: real
// programs, under load. Open flows go on, no new flow is refused, and the program that left leaves nothing in the kernel.
// FAIRWAY_UPGRADE_FROM names another commit or tag to upgrade from.
func TestUpgrade(t *testing.T) {
	previous := buildPrevious(t)
	for _, mode := range []string{datapath.NFTables, datapath.IPTables, datapath.Userspace} {
		t.Run(mode, func(t *testing.T) { upgrade(t, previous, mode) })
	}
}

// buildPrevious builds the program of the commit to upgrade from, and returns its path. It skips the test if the
// repository has no such commit: a clone of depth 1 has no history.
func buildPrevious(t *testing.T) (program string) {
	t.Helper()
	commit := cmp.Or(os.Getenv("FAIRWAY_UPGRADE_FROM"), "HEAD~1")
	if out, err := exec.Command("git", "rev-parse", "--verify", "--quiet", commit+"^{commit}").CombinedOutput(); err != nil {
		t.Skipf("this clone has no commit %s to upgrade from: %v %s", commit, err, out)
	}
	dir := t.TempDir()
	program = filepath.Join(dir, "bin", "fairway")
	build := exec.Command("sh", "-ec", `git -C "$(git rev-parse --show-toplevel)" archive "$1" | tar -x -C "$2"
		cd "$2" && go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=previous" -o "$3" ./cmd/fairway`,
		"build", commit, dir, program)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build commit %s: %v\n%s", commit, err, out)
	}
	return program
}

func upgrade(t *testing.T, previous, mode string) {
	o := &oracle{api: apiserver.New(), holds: objects{}}
	o.api.Put(&networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{services4, services6}},
	})
	o.api.Put(o.node(""))
	o.putStable()
	config := configured(podsKnown).file(t, mode)
	tw := newTwin(t, o.api, "the previous version", previous, "agent", "--master", "http://"+apiPort, "--config", config)
	n := &takenNode{t: t, tw: tw}
	n.upToDate(tw.proc, mode)
	before := n.objects()
	// Connections of mode userspace end with their agent, and new ones wait for the next agent.
	lasting := mode != datapath.Userspace
	var flows *flows
	var load *stream
	if lasting {
		flows = openFlows(t, tw)
		load = n.load(flows)
	}
	hold := func() {
		if lasting {
			flows.hold(0)
			return
		}
		f := openFlows(t, tw)
		f.hold(0)
		f.close()
	}
	gap := watchGap(t, tw)

	t.Log("the previous version stops, ours starts")
	if err := tw.proc.Stop(); err != nil {
		t.Fatal(err)
	}
	ours := n.agent("--config", config)
	n.upToDate(ours, mode)
	hold()
	upgraded := n.objects()

	t.Log("ours stops, the previous version starts")
	if err := ours.Stop(); err != nil {
		t.Fatal(err)
	}
	tw.start(t)
	n.upToDate(tw.proc, mode)
	hold()
	if after := n.objects(); !slices.Equal(after, before) {
		t.Errorf("the previous version had %d sets, maps and chains, and has %d after ours was there:\n%s",
			len(before), len(after), strings.Join(changedNames(before, after), "\n"))
	}

	t.Log("the previous version stops, ours starts again")
	if err := tw.proc.Stop(); err != nil {
		t.Fatal(err)
	}
	ours = n.agent("--config", config)
	n.upToDate(ours, mode)
	hold()
	if after := n.objects(); !slices.Equal(after, upgraded) {
		t.Errorf("ours had other sets, maps and chains after the first upgrade than after the second:\n%s", strings.Join(changedNames(upgraded, after), "\n"))
	}
	if lasting {
		load.end()
	}
	t.Logf("no client went without an answer for longer than %v", gap())
}

// watchGap connects to a Service again and again until end is called. end returns the longest time between two answers.
// In mode userspace no process relays for a while.
func watchGap(t *testing.T, tw *twin) (end func() time.Duration) {
	t.Helper()
	from, to := tw.hosts[scenario.World.Pod.V4], netip.AddrPortFrom(netip.MustParseAddr(stable4), uint16(stableTCP))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	longest := time.Duration(0)
	wg.Go(func() {
		const patience = 200 * time.Millisecond
		for last := time.Now(); ctx.Err() == nil; {
			c, err := from.Dial("tcp", to, patience)
			if err != nil {
				continue
			}
			if c.Ask(patience).Outcome == testnet.Answered {
				longest, last = max(longest, time.Since(last)), time.Now()
			}
			c.Close()
		}
	})
	end = func() time.Duration {
		cancel()
		wg.Wait()
		return longest
	}
	t.Cleanup(func() { end() })
	return end
}

// upToDate waits until an agent, ours or the previous one, has synced.
func (n *takenNode) upToDate(p *process.Process, mode string) {
	n.t.Helper()
	n.until("the first pass of "+p.Name, p, func() bool {
		return strings.Contains(p.Output(), "rules are up to date") && n.tw.get("10249/proxyMode") == mode
	})
}

// objects returns the names of all sets, maps and chains on the node, sorted. iptables names its chains by their
// content.
func (n *takenNode) objects() (all []string) {
	n.t.Helper()
	text, err := n.output("nft", "-t", "list", "ruleset")
	if err != nil {
		n.t.Fatal(err)
	}
	table := ""
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) == 4 && f[0] == "table":
			table = f[1] + " " + f[2]
		case len(f) == 3 && (f[0] == "set" || f[0] == "map" || f[0] == "chain"):
			all = append(all, fmt.Sprintf("%s %s %s", table, f[0], f[1]))
		}
	}
	slices.Sort(all)
	return all
}

// changedNames returns the names that only one of two sorted lists has.
func changedNames(a, b []string) (all []string) {
	for _, s := range a {
		if !slices.Contains(b, s) {
			all = append(all, "- "+s)
		}
	}
	for _, s := range b {
		if !slices.Contains(a, s) {
			all = append(all, "+ "+s)
		}
	}
	return all
}
