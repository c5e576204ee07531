package podroutes

import (
	"context"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var cidrs = []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:10:244:1::/64")}

// TestFiles: what one side writes the other reads; nothing is there at first and in the end.
func TestFiles(t *testing.T) {
	d := Of(filepath.Join(t.TempDir(), "bgp"), "node-1")
	have := func(wantCIDRs []netip.Prefix, wantRoutes []Route) {
		t.Helper()
		got, err := d.PodCIDRs()
		routes, err2 := d.Received()
		if err != nil || err2 != nil || !slices.Equal(got, wantCIDRs) || !slices.Equal(routes, wantRoutes) {
			t.Errorf("%v %v, %v %v; want %v, %v", got, err, routes, err2, wantCIDRs, wantRoutes)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	have(nil, nil)
	must(d.SetPodCIDRs(nil))
	must(d.SetPodCIDRs(cidrs))
	routes := []Route{{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("192.0.2.254"), netip.MustParseAddr("192.0.2.253")}}
	must(d.SetReceived(routes))
	have(cidrs, routes)
	owners := map[netip.Addr]string{netip.MustParseAddr("192.0.2.200"): "node-1", netip.MustParseAddr("2001:db8::200"): ""}
	must(d.SetOwners(owners))
	if got, err := d.Owners(); err != nil || !maps.Equal(got, owners) {
		t.Errorf("owners %v, %v; want %v", got, err, owners)
	}
	must(d.SetOwners(nil))
	must(d.SetReceived([]Route{}))
	have(cidrs, nil)
	must(d.SetPodCIDRs(nil))
	must(d.SetReceived(nil))
	if all, err := os.ReadDir(string(d)); err != nil || len(all) != 0 {
		t.Errorf("left: %v, %v", all, err)
	}
	must(d.Remove())
	if _, err := os.Stat(filepath.Dir(string(d))); !os.IsNotExist(err) {
		t.Errorf("the directory stays: %v", err)
	}
}

// TestUnreadable: a file that is wrong is an error, not a reason to forget.
func TestUnreadable(t *testing.T) {
	d := Dir(t.TempDir())
	for text, want := range map[string]string{"": "unexpected end", "{": "unexpected end", `[{"prefix":"10.0.0.0/33"}]`: "prefix"} {
		if err := os.WriteFile(filepath.Join(string(d), receivedFile), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := d.Received(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is read as %v, %v", text, got, err)
		}
	}
	if err := os.Truncate(filepath.Join(string(d), receivedFile), maxSize+1); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Received(); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a huge file: %v", err)
	}
}

// TestWatch: a change is noticed, and what does not change the file is none.
func TestWatch(t *testing.T) {
	d := Of(t.TempDir(), "node-1")
	ctx, stop := context.WithCancel(t.Context())
	noticed, ended := make(chan struct{}, 1000), make(chan struct{})
	go func() {
		defer close(ended)
		d.Watch(ctx, func() { noticed <- struct{}{} }, func(err error) { t.Errorf("no notices: %v", err) })
	}()
	<-noticed
	for i := range 3 {
		if err := d.SetPodCIDRs(cidrs[:1+i%2]); err != nil {
			t.Fatal(err)
		}
		for got := []netip.Prefix(nil); !slices.Equal(got, cidrs[:1+i%2]); got, _ = d.PodCIDRs() {
			select {
			case <-noticed:
			case <-time.After(30 * time.Second):
				t.Fatal("a change was not noticed")
			}
		}
	}
	was, err := os.Stat(filepath.Join(string(d), podCIDRsFile))
	if err == nil {
		err = d.SetPodCIDRs(cidrs[:1])
	}
	if now, err2 := os.Stat(filepath.Join(string(d), podCIDRsFile)); err != nil || err2 != nil || !os.SameFile(was, now) {
		t.Errorf("what has not changed was written: %v, %v", err, err2)
	}
	stop()
	<-ended
}
