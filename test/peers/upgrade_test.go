package peers

import (
	"context"
	"fmt"
	"net/netip"
	"os"
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

// TestUpgrade puts our agent in the place of one of a former release, and the former one
// back: the real binary, under load. Flows go on, no new one is ever refused, and
// of the program that left nothing remains in the kernel.
func TestUpgrade(t *testing.T) {
	former, err := filepath.Abs(filepath.Join("..", "..", "bin", "fairway-former"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(former); err != nil {
		t.Skipf("there is no binary of a former release: %v (make bin/fairway-former builds it from the repository's history)", err)
	}
	for _, mode := range []string{datapath.NFTables, datapath.IPTables, datapath.Userspace} {
		t.Run(mode, func(t *testing.T) { upgrade(t, former, mode) })
	}
}

func upgrade(t *testing.T, former, mode string) {
	o := &oracle{api: apiserver.New(), holds: objects{}}
	o.api.Put(&networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{services4, services6}},
	})
	o.api.Put(o.node(""))
	o.putStable()
	config := configured(podsKnown).file(t, mode)
	tw := newTwin(t, o.api, "the former release", former, "agent", "--master", "http://"+apiPort, "--config", config)
	n := &takenNode{t: t, tw: tw}
	n.upToDate(tw.proc, mode)
	before := n.objects()
	// An agent in mode userspace takes its connections with it, and is not there until the
	// next one has synced.
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

	t.Log("the former release stops, ours starts")
	if err := tw.proc.Stop(); err != nil {
		t.Fatal(err)
	}
	ours := n.agent("--config", config)
	n.upToDate(ours, mode)
	hold()
	upgraded := n.objects()

	t.Log("ours stops, the former release starts")
	if err := ours.Stop(); err != nil {
		t.Fatal(err)
	}
	tw.start(t)
	n.upToDate(tw.proc, mode)
	hold()
	if after := n.objects(); !slices.Equal(after, before) {
		t.Errorf("the former release had %d sets, maps and chains, and has %d after ours was there:\n%s",
			len(before), len(after), strings.Join(changedNames(before, after), "\n"))
	}

	t.Log("the former release stops, ours starts again")
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

// watchGap connects to a Service all the time, and returns what ends that: it returns the longest time
// between two answers, which mode userspace has while no process relays.
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

// upToDate waits until an agent of ours, former or not, has synced.
func (n *takenNode) upToDate(p *process.Process, mode string) {
	n.t.Helper()
	n.until("the first pass of "+p.Name, p, func() bool {
		return strings.Contains(p.Output(), "rules are up to date") && n.tw.get("10249/proxyMode") == mode
	})
}

// objects returns the names of all sets, maps and chains on the node, sorted. Chains that
// iptables makes for one Service are named by what is in them.
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

// changedNames returns what only one of two sorted lists has.
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
