package cni

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

// limited is a network whose plugin gets pods' limits, and a pod with limits in bits a second.
func (n *node) limited(ingress, egress uint64) (*libcni.NetworkConfigList, *pod) {
	n.t.Helper()
	list, err := libcni.NetworkConfFromBytes([]byte(fmt.Sprintf(
		`{"cniVersion":"1.1.0","name":"fairway","plugins":[{"type":"fairway-cni","capabilities":{"bandwidth":true},"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.244.1.0/24"}],[{"subnet":"fd00:10:244:1::/64"}]]}}]}`,
		n.stateDir)))
	if err != nil {
		n.t.Fatal(err)
	}
	p := newPod(n.t)
	// As containerd does: a burst that means "as you like".
	p.rt.CapabilityArgs = map[string]any{"bandwidth": map[string]any{
		"ingressRate": ingress, "ingressBurst": 1<<32 - 1, "egressRate": egress, "egressBurst": 1<<32 - 1,
	}}
	return list, p
}

// stream sends from one namespace to another for a while and returns what came in, in bits
// a second of the receiver's time.
func stream(t testing.TB, from, to *namespace, at netip.Addr, d time.Duration) (rate float64, elapsed time.Duration) {
	t.Helper()
	var l net.Listener
	err := to.do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(at, 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	type result struct {
		n   int64
		d   time.Duration
		err error
	}
	received := make(chan result, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			received <- result{err: err}
			return
		}
		defer c.Close()
		start := time.Now()
		n, err := io.Copy(io.Discard, c)
		received <- result{n, time.Since(start), err}
	}()
	err = from.do(func() error {
		c, err := net.DialTimeout("tcp", l.Addr().String(), patience)
		if err != nil {
			return err
		}
		defer c.Close()
		buf, end := make([]byte, 64<<10), time.Now().Add(d)
		_ = c.SetDeadline(end.Add(patience))
		for time.Now().Before(end) {
			if _, err := c.Write(buf); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r := <-received
	if r.err != nil {
		t.Fatal(r.err)
	}
	return float64(r.n) * 8 / r.d.Seconds(), r.d
}

// TestBandwidth: a pod gets and sends no more than its limits, in both families; the packets still come from
// its own link, so that its source is checked; CHECK sees the limits; DEL and GC leave no link.
func TestBandwidth(t *testing.T) {
	n := newNode(t)
	list, p := n.limited(16e6, 8e6)
	n.mustAdd(list, p)
	for what, s := range map[string]struct {
		from, to *namespace
		at       netip.Addr
		limit    float64
	}{
		"to the pod":           {n.outside, p.namespace, p.addrs[0], 16e6},
		"from the pod":         {p.namespace, n.outside, outside4, 8e6},
		"to the pod by IPv6":   {n.outside, p.namespace, p.addrs[1], 16e6},
		"from the pod by IPv6": {p.namespace, n.outside, outside6, 8e6},
	} {
		// The bucket is full at first; headers count, which the stream does not have.
		rate, d := stream(t, s.from, s.to, s.at, time.Second)
		if most := s.limit + float64(max(minBurst*8, s.limit/burstTime))/d.Seconds(); rate > most*1.02 {
			t.Errorf("%s: %.2f Mbit/s in %v, the limit is %.0f", what, rate/1e6, d, s.limit/1e6)
		} else {
			t.Logf("%s: %.2f of %.0f Mbit/s in %v", what, rate/1e6, s.limit/1e6, d)
		}
	}
	if err := n.check(list, p); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	shaper := attachment{"fairway", p.rt.ContainerID, "eth0"}.shaper()
	if off := n.run("cat /proc/sys/net/ipv6/conf/" + shaper + "/disable_ipv6"); off != "1\n" {
		t.Errorf("the shaper has IPv6, with which its deletion takes twice as long: %q", off)
	}
	n.run("tc qdisc del dev " + shaper + " root")
	wantCode(t, n.check(list, p), codeBandwidth, "sends at 0 bits")
	if err := n.del(list, p); err != nil {
		t.Fatal(err)
	}
	_, q := n.limited(0, 1e6)
	n.mustAdd(list, q)
	q.close() // the pod's namespace and with it the wire are gone, but for the shaper
	gc := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"fairway","type":"fairway-cni","cni.dev/valid-attachments":[],"ipam":{"type":"host-local","dataDir":%q}}`, n.stateDir)
	if _, err := n.call("GC", gc, nil); err != nil {
		t.Fatal(err)
	}
	if links := n.run("ip -br link"); strings.Contains(links, shaperStart) || strings.Contains(links, linkPrefix) {
		t.Errorf("left behind:\n%s", links)
	}
	_, slow := n.limited(999, 0)
	_, err := n.add(list, slow)
	wantCode(t, err, types.ErrInvalidNetworkConfig, "below 1000 bits")
}

// BenchmarkBandwidth prints how much of its limit a pod gets, in percent: 90 to 110 are
// asked for. It says nothing on a machine with other work to do.
func BenchmarkBandwidth(b *testing.B) {
	for _, limit := range []uint64{1e6, 10e6, 100e6, 1e9} {
		b.Run(fmt.Sprintf("%dMbit", limit/1e6), func(b *testing.B) {
			n := newNode(b)
			list, p := n.limited(limit, limit)
			n.mustAdd(list, p)
			took := 3 * time.Second
			if limit < 10e6 {
				took = 20 * time.Second // a bucket, of 32 KiB at least, is a tenth of what passes in three
			}
			for range b.N {
				in, _ := stream(b, n.outside, p.namespace, p.addrs[0], took)
				out, _ := stream(b, p.namespace, n.outside, outside4, took)
				b.ReportMetric(100*in/float64(limit), "%in")
				b.ReportMetric(100*out/float64(limit), "%out")
			}
		})
	}
}
