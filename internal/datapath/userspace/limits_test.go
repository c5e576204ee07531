package userspace

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// greed returns the number of items that a holder gets, one at a time, until the first refusal.
func (l *limits) greed(h holder, b *budget) (n int) {
	for l.tryAcquire(h, 1, b) {
		n++
	}
	return n
}

func held(client, name string) holder {
	return holder{netip.MustParsePrefix(client), api.Name{Namespace: "default", Name: name}}
}

// TestShares: a client gets at most half, and many greedy clients get equal parts. The others can use the remaining
// part. One Service cannot use up another Service's part.
func TestShares(t *testing.T) {
	const total = 12000
	b := func() *budget { return &budget{total: total} }
	var l limits
	if n := l.greed(held("10.0.0.1/32", "a"), b()); n != total/2 {
		t.Errorf("one client gets %d of %d", n, total)
	}
	all := b()
	for i, want := range []int{6000, 3000, 1500} {
		client := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 32)
		if n := l.greed(holder{client, api.Name{Name: string(rune('a' + i))}}, all); n != want {
			t.Errorf("client %d gets %d, want %d", i, n, want)
		}
	}
	all = b()
	for i := range 200 {
		client := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}), 32)
		l.greed(holder{client, api.Name{Name: "crowded"}}, all)
	}
	if has := all.services[api.Name{Name: "crowded"}]; has < total*2/3 || has > total*4/5 {
		t.Errorf("a Service with many clients gets %d of %d", has, total)
	}
	if n := l.greed(held("10.0.9.9/32", "other"), all); n < total/10 {
		t.Errorf("another Service gets %d of %d", n, total)
	}
}

// TestFew: a client with few items is served, even if other clients of the Service are at their limit.
func TestFew(t *testing.T) {
	var l limits
	b := &budget{total: 12000}
	for _, client := range []string{"10.0.0.1/32", "10.0.0.2/32", "10.0.0.3/32"} {
		l.greed(held(client, "dns"), b)
	}
	if n := l.greed(held("10.0.0.4/32", "dns"), b); n != few {
		t.Errorf("it gets %d, want %d", n, few)
	}
}

// TestGive: returned items are available again, and a holder without items is forgotten.
func TestGive(t *testing.T) {
	var l limits
	b := &budget{total: 100}
	h := held("10.0.0.1/32", "a")
	for range 3 {
		if n := l.greed(h, b); n != 50 {
			t.Fatalf("got %d", n)
		}
		l.release(h, 50, b)
	}
	if b.used != 0 || len(b.clients)+len(b.services) != 0 {
		t.Errorf("left: %+v", b)
	}
}

// TestHolder: an external IPv6 client is identified by its network.
func TestHolder(t *testing.T) {
	f := &proxyFrontend{Frontend: &service.Frontend{}}
	for addr, want := range map[string]string{"10.0.0.1": "10.0.0.1/32", "2001:db8::1:2": "2001:db8::/64"} {
		if got := holderOf(f, fromExternal, netip.MustParseAddr(addr)); got.client.String() != want {
			t.Errorf("%s counts as %v", addr, got.client)
		}
	}
	if got := holderOf(f, fromPod, netip.MustParseAddr("fd00::1:2")); got.client.String() != "fd00::1:2/128" {
		t.Errorf("a pod counts as %v", got.client)
	}
}

// TestLimitsLog: thousands of refusals log one line, with the client and the resource.
func TestLimitsLog(t *testing.T) {
	var out strings.Builder
	l, err := newLimits(slog.New(slog.NewTextHandler(&out, nil)), 100)
	if err != nil {
		t.Fatal(err)
	}
	h := held("10.0.0.1/32", "a")
	for range 1000 {
		l.acquire(h, connFiles, &l.files)
		l.logExhausted(unix.EMFILE)
	}
	for _, want := range []string{"of=descriptors client=10.0.0.1/32 service=default/a", "too many open files"} {
		if n := strings.Count(out.String(), want); n != 1 {
			t.Errorf("%d lines with %q:\n%s", n, want, out.String())
		}
	}
}

// TestReserve: the agent keeps descriptors for itself.
func TestReserve(t *testing.T) {
	l, err := newLimits(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var max unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &max); err != nil {
		t.Fatal(err)
	}
	if kept := int(max.Cur) - l.files.total; kept != min(reservedFiles, int(max.Cur)/reservedPart) {
		t.Errorf("%d of %d are kept", kept, max.Cur)
	}
}

// TestAffinityTime: a client's time does not depend on the node's clock. An entry of an earlier release, which used the
// clock, is understood.
func TestAffinityTime(t *testing.T) {
	near := func(what string, got, want time.Time) {
		t.Helper()
		if d := got.Sub(want).Abs(); d > 5*time.Second {
			t.Errorf("%s is wrong by %v", what, d)
		}
	}
	until := time.Now().Add(3 * time.Hour)
	written := secondsAt(until)
	if up := uptime(); time.Duration(written)*time.Second < up {
		t.Errorf("%d s, %v after the kernel booted", written, up)
	}
	near("a time", timeAt(written), until)
	near("a minute ago", timeAt(secondsAt(time.Now().Add(-time.Minute))), time.Now().Add(-time.Minute))
}
