package bgp

import (
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// watchedRack has nodes and a router that watch each other by BFD. Without BFD a test would end before a hold time
// does.
func watchedRack(t *testing.T, n int, interval time.Duration) (r *rack, all []string) {
	t.Helper()
	r = newRack(t, n)
	ms := interval.String()
	ms = strings.TrimSuffix(ms, "ms") + " ms"
	r.router("bfd on; hold time 240;", `protocol bfd b { interface "*" { min rx interval `+ms+`; min tx interval `+ms+`; idle tx interval 1 s; multiplier 3; }; }`)
	for i, m := range r.nodes {
		p := m.world.Peers[0]
		p.HoldTime, p.KeepaliveTime, p.BFDProfile = 240*time.Second, 80*time.Second, "fast"
		m.world.BFD = []*announce.BFDProfile{{Name: "fast", ReceiveInterval: interval, TransmitInterval: interval, DetectMultiplier: 3}}
		r.start(i)
		all = append(all, m.Name)
	}
	r.watching()
	r.until(vip4, all...)
	r.until(vip6, all...)
	return r, all
}

// watching waits until BFD is up with all nodes.
func (r *rack) watching() {
	r.t.Helper()
	for _, m := range r.nodes {
		await(r.t, func() string {
			for line := range strings.Lines(r.ask("show", "bfd", "sessions")) {
				if strings.HasPrefix(line, m.Addr(true).String()+" ") {
					return line
				}
			}
			return ""
		}, " Up ")
	}
}

// TestBFD: a node whose speaker hangs leaves the router's routes. A node that does not hear the router ends the
// session and gets it back. The end of a speaker is no failure to the router.
func TestBFD(t *testing.T) {
	r, all := watchedRack(t, 2, 300*time.Millisecond)
	must(t, r.nodes[1].cmd.Process.Signal(syscall.SIGSTOP))
	stopped := time.Now()
	r.until(vip4, "node-1")
	t.Logf("a speaker that hangs: its route is gone after %v", time.Since(stopped).Round(time.Millisecond))
	r.until(vip6, "node-1")
	must(t, r.nodes[1].cmd.Process.Signal(syscall.SIGCONT))
	r.until(vip4, all...)
	r.watching()

	deaf := r.nodes[0]
	r.run(deaf.Namespace, "nft", "add table ip deaf; add chain ip deaf in { type filter hook input priority 0; }; add rule ip deaf in udp dport 3784 drop")
	await(t, deaf.log.String, "BFD is down", "the router was silent for")
	r.until(vip4, "node-2")
	r.run(deaf.Namespace, "nft", "delete table ip deaf")
	r.until(vip4, all...)
	r.watching()

	r.end(1)
	r.until(vip4, "node-1")
	if log := r.birdLog.String(); strings.Count(log, "BFD session down") > 2 { // the speaker that hung, the node that was deaf
		t.Errorf("the end of a speaker is a failure to the router:\n%s", log)
	}
}

// TestProfileChanged: a changed BFDProfile takes effect, and the session with the router goes on. If somebody deletes
// a profile in use, the session begins again without BFD, in order, so that the router sees no failure, and the log
// names the missing profile. When the profile is back, both ends watch each other again.
func TestProfileChanged(t *testing.T) {
	r, all := watchedRack(t, 1, 900*time.Millisecond)
	m := r.nodes[0]
	became := time.Now()
	m.world.BFD = []*announce.BFDProfile{{Name: "fast", ReceiveInterval: 1200 * time.Millisecond, TransmitInterval: 1100 * time.Millisecond, DetectMultiplier: 5}}
	r.tell(0)
	await(t, func() string { return r.ask("show", "bfd", "sessions") }, " Up ", " 1.200 ", " 5.500") // BIRD sends at this node's receive interval, and waits for five of its transmit intervals
	for time.Since(became) < 6*time.Second {
		if got := r.routes(vip4); !slices.Equal(got, all) {
			t.Fatalf("the route's next hops are %v", got)
		}
		time.Sleep(50 * time.Millisecond) // the pause between two looks
	}
	if log := m.log.String(); strings.Count(log, "session is up") != 1 || strings.Contains(log, "is down") || strings.Contains(log, "restarts") {
		t.Error("the session did not go on")
	}

	profiles := m.world.BFD
	m.world.BFD = nil
	r.tell(0)
	await(t, m.log.String, "there is no BFDProfile fast; without BFD a router that is gone is noticed after holdTime (4m0s)", "session restarts")
	r.until(vip4, all...)
	m.world.BFD = profiles
	r.tell(0)
	r.watching()
	r.until(vip4, all...)
	if log := r.birdLog.String(); strings.Contains(log, "BFD session down") || strings.Count(m.log.String(), "session restarts") != 1 {
		t.Error("the router saw a failure, or the session began anew for BFD")
	}
}

// TestBFDOutage: a node dies while a client outside asks every 10 ms, each time from another port. With
// FAIRWAY_FAULTS=all (make bench-lb) 20 nodes die, and docs/reliability.md has the times for which some answers are
// missing.
func TestBFDOutage(t *testing.T) {
	if os.Getenv("FAIRWAY_FAULTS") != "all" {
		t.Skip("make bench-lb: it measures")
	}
	for _, interval := range []time.Duration{300 * time.Millisecond, 200 * time.Millisecond, 100 * time.Millisecond} {
		t.Run(interval.String(), func(t *testing.T) {
			r, all := watchedRack(t, 3, interval)
			var gaps []time.Duration
			for range 20 {
				gaps = append(gaps, r.outage(func() {
					must(t, r.net.Fabric.Do(func() error { return exec.Command("ip", "link", "set", "node3", "down").Run() }))
					r.kill(2)
				}))
				r.until(vip4, all[:2]...)
				must(t, r.net.Fabric.Do(func() error { return exec.Command("ip", "link", "set", "node3", "up").Run() }))
				r.start(2)
				r.until(vip4, all...)
				r.watching()
			}
			slices.Sort(gaps)
			t.Logf("BFD %v x 3, some without an answer for: min %v, median %v, max %v", interval, gaps[0], gaps[len(gaps)/2], gaps[len(gaps)-1])
		})
	}
}

// outage asks every 10 ms, calls fault, and returns the time from then until the last request without an answer.
func (r *rack) outage(fault func()) time.Duration {
	r.t.Helper()
	var mu sync.Mutex
	var lost time.Time
	var asking sync.WaitGroup
	ask := func() {
		at := time.Now()
		asking.Go(func() {
			if answer := r.net.Outside.Ask("udp", netip.AddrPortFrom(vip4, 8080), 500*time.Millisecond); answer.By == "" {
				mu.Lock()
				defer mu.Unlock()
				if at.After(lost) {
					lost = at
				}
			}
		})
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	fault()
	began := time.Now()
	for time.Since(began) < 3*time.Second {
		<-tick.C
		ask()
	}
	asking.Wait()
	return max(0, lost.Sub(began))
}
