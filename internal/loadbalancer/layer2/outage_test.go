package layer2

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"
)

// TestOutage kills the owner of an address while a client asks every 10 ms. Another node answers, and two never have
// the address. With FAIRWAY_FAULTS=all (make bench-lb) 20 owners die, and docs/reliability.md has the longest times
// without an answer.
func TestOutage(t *testing.T) {
	l := newLAN(t, 3)
	best := l.best(vips[0])
	l.outages(best, func() {
		l.link(best, "down")
		l.kill(best)
	}, func() { l.link(best, "up") })
}

// TestKilledAlone kills the owner's speaker. The node still serves machines that know its MAC. The client's router
// asks for the MAC before each packet.
func TestKilledAlone(t *testing.T) {
	l := newLAN(t, 3)
	best := l.best(vips[0])
	stop := make(chan struct{})
	var forgetting sync.WaitGroup
	forgetting.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				_ = l.net.Fabric.Do(func() error { return exec.Command("ip", "neigh", "flush", "to", vips[0].String()).Run() }) // there may be no entry
			}
		}
	})
	defer forgetting.Wait()
	defer close(stop)
	l.outages(best, func() { l.kill(best) }, func() {})
}

// outages hurts the owner of an address again and again, heals it, and starts its speaker.
func (l *lan) outages(best int, hurt, heal func()) {
	l.t.Helper()
	deaths := 1
	if os.Getenv("FAIRWAY_FAULTS") == "all" {
		deaths = 20
	}
	var gaps []time.Duration
	for range deaths {
		l.until(vips[0], best)
		gaps = append(gaps, l.outage(vips[0], hurt))
		heal()
		l.start(best)
	}
	l.until(vips[0], best)
	slices.Sort(gaps)
	l.t.Logf("without an answer: min %v, median %v, max %v; %d changes of owner", gaps[0], gaps[len(gaps)/2], gaps[len(gaps)-1], l.tape.Check(l.t))
}

// link sets the bridge's port of a node.
func (l *lan) link(node int, state string) {
	l.t.Helper()
	port := "node" + string(rune('1'+node))
	must(l.t, l.net.Fabric.Do(func() error { return exec.Command("ip", "link", "set", port, state).Run() }))
}

// outage asks an address every 10 ms, calls fault, and returns the longest time without an answer. The test fails if
// answers end.
func (l *lan) outage(a netip.Addr, fault func()) (gap time.Duration) {
	l.t.Helper()
	var c net.Conn
	must(l.t, l.net.Outside.Do(func() (err error) {
		c, err = net.Dial("udp", netip.AddrPortFrom(a, 8080).String())
		return err
	}))
	defer c.Close()
	stop := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		every := time.NewTicker(10 * time.Millisecond)
		defer every.Stop()
		for {
			select {
			case <-stop:
				return
			case <-every.C:
				_, _ = c.Write([]byte("who?\n")) // an ICMP error of an earlier request
			}
		}
	})
	defer asking.Wait()
	defer close(stop)
	buf := make([]byte, 512)
	last := time.Now()
	answers := func(n int) {
		for end := time.Now().Add(60 * time.Second); n > 0; {
			if time.Now().After(end) {
				l.t.Fatalf("%v does not answer any more", a)
			}
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			if _, err := c.Read(buf); err == nil {
				gap, last, n = max(gap, time.Since(last)), time.Now(), n-1
			}
		}
	}
	answers(30)
	gap = 0
	fault()
	answers(50)
	return gap
}
