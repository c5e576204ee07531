package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/service"
	"golang.org/x/sys/unix"
)

func bigTable(n int) (*service.Builder, service.Settings) {
	b := service.NewBuilder()
	for i := range n {
		b.Set(entry(i, 2))
	}
	return b, service.Settings{
		Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, NodePorts: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}
}
func entry(i, eps int) *service.Entry {
	r := &service.Route{Masquerade: service.MasqueradeFar}
	for e := range eps {
		r.Endpoints = append(r.Endpoints, service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(e)}), uint16(8000+i&255)), Local: e == 1 && i < 100})
	}
	n := service.Name{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}
	return &service.Entry{Name: n, Frontends: []*service.Frontend{{
		Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)}), 80), Proto: service.TCP,
		Service: service.PortName{Name: n, Port: "http"}, Inside: r, Outside: r}}}
}

func TestSmoke(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("needs root")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	d, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1000, 10000} {
		b, s := bigTable(n)
		tab := b.Table(s)
		t0 := time.Now()
		st, err := d.Sync(ctx, tab)
		t.Logf("%d: %v %v %+v", n, time.Since(t0), err, st)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			b.Set(entry(n+i, 3))
			t0 = time.Now()
			tab = b.Table(s)
			st, err = d.Sync(ctx, tab)
			t.Logf("one more: %v %v %+v", time.Since(t0), err, st)
		}
		t0 = time.Now()
		dump, err := d.Dump(ctx)
		if err != nil {
			t.Fatal(err)
		}
		diff := service.Diff(dump, tab)
		t.Logf("dump %v: %d differ; settings %v %v", time.Since(t0), len(diff), dump.Settings, dump.Settings.Equal(s))
		d2, _ := New(Config{})
		t0 = time.Now()
		st, err = d2.Sync(ctx, tab)
		t.Logf("adopt: %v %v %+v", time.Since(t0), err, st)
		if err := d.Cleanup(ctx); err != nil {
			t.Fatal(err)
		}
	}
}
