package takeover

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// fake is a datapath that keeps a log of what was asked of it. It is no Finder.
type fake struct {
	name string
	log  *[]string
	held *service.Table
	err  error // of the next calls
}

func (f *fake) note(verb string) error {
	*f.log = append(*f.log, f.name+" "+verb)
	return f.err
}

func (f *fake) Name() string                   { return f.name }
func (f *fake) Algorithms() service.Algorithms { return service.AlgorithmsOf(service.Random) }
func (f *fake) Sync(_ context.Context, want *service.Table) (datapath.Stats, error) {
	err := f.note("sync")
	if err == nil {
		f.held = want
	}
	return datapath.Stats{}, err
}
func (f *fake) Check(context.Context) (bool, error) { return true, f.note("check") }
func (f *fake) Dump(context.Context) (*service.Table, error) {
	if f.held == nil {
		return &service.Table{}, nil
	}
	return f.held, nil
}
func (f *fake) Cleanup(context.Context) error {
	err := f.note("cleanup")
	if err == nil {
		f.held = nil
	}
	return err
}
func (f *fake) Close() { _ = f.note("close") }

// releaser needs some calls until its connections have ended. It finds itself.
type releaser struct {
	fake
	calls int
}

func (r *releaser) Found(context.Context) (bool, error) { return r.calls > 0, nil }
func (r *releaser) Release(context.Context) (bool, error) {
	err := r.note("release")
	r.calls--
	return r.calls == 0, err
}

// table is one that is not empty.
func table() *service.Table {
	return service.NewTable(service.Settings{PodInterfaces: []string{"veth*"}}, nil)
}

// expect compares what was asked of the fakes since the last call.
func expect(t *testing.T, log *[]string, want ...string) {
	t.Helper()
	if !slices.Equal(*log, want) {
		t.Errorf("asked %q, want %q", *log, want)
	}
	*log = nil
}

// TestHandover: others go only after our own Sync has succeeded, each in its way and as
// often as it takes, and those that left nothing are not touched.
func TestHandover(t *testing.T) {
	var log []string
	ours := &fake{name: "ours", log: &log, err: errors.New("not yet")}
	plain := &fake{name: "plain", log: &log, held: table()}
	nothing := &fake{name: "nothing", log: &log}
	slow := &releaser{fake{name: "slow", log: &log}, 2}
	absent := &releaser{fake{name: "absent", log: &log}, 0}
	var said strings.Builder
	h := New(Config{
		Log: slog.New(slog.NewTextHandler(&said, nil)), Datapath: ours, Others: []datapath.Datapath{plain, nothing, slow, absent},
	})
	_, err := h.Sync(t.Context(), table())
	if err == nil {
		t.Error("the error of our Sync is lost")
	}
	_, _ = h.Check(t.Context())
	expect(t, &log, "ours sync", "ours check")

	ours.err, plain.err = nil, errors.New("busy")
	if _, err := h.Sync(t.Context(), table()); err != nil {
		t.Errorf("that another mode cannot be removed fails our Sync: %v", err)
	}
	expect(t, &log, "ours sync", "plain cleanup", "nothing close", "slow release", "absent close")

	plain.err = nil
	_, _ = h.Check(t.Context())
	expect(t, &log, "plain cleanup", "plain close", "slow release", "slow close", "ours check")
	_, _ = h.Sync(t.Context(), table())
	expect(t, &log, "ours sync")
	h.Close()
	expect(t, &log, "ours close")
	if n := strings.Count(said.String(), "busy"); n != 1 {
		t.Errorf("the failure is told %d times, want once:\n%s", n, &said)
	}
}

// TestCloseEarly: a Handover that never got to carry closes everybody.
func TestCloseEarly(t *testing.T) {
	var log []string
	New(Config{
		Log: slog.New(slog.DiscardHandler), Datapath: &fake{name: "ours", log: &log},
		Others: []datapath.Datapath{&fake{name: "other", log: &log, held: table()}},
	}).Close()
	expect(t, &log, "other close", "ours close")
}

// TestReplace: kube-proxy's rules go after our own are there, and a kube-proxy that
// writes them again is named once.
func TestReplace(t *testing.T) {
	inside(t, func() error {
		var log []string
		var said strings.Builder
		ours := &fake{name: "ours", log: &log, err: errors.New("not yet")}
		h := New(Config{Log: slog.New(slog.NewTextHandler(&said, nil)), Datapath: ours, KubeProxy: &KubeProxy{}, Replace: true})
		write := func() error {
			_, err := run(t.Context(), "table ip kube-proxy { chain x { type filter hook input priority 0; }; }", "nft", "-f", "-")
			return err
		}
		there := func() bool {
			text, err := run(t.Context(), "", "nft", "list", "tables")
			return err != nil || strings.Contains(text, "kube-proxy")
		}
		if err := write(); err != nil {
			return err
		}
		_, _ = h.Sync(t.Context(), table())
		if !there() {
			t.Error("kube-proxy's rules are removed before ours are there")
		}
		ours.err = nil
		for range 4 {
			_, _ = h.Sync(t.Context(), table())
			if there() {
				t.Error("kube-proxy's rules are still there")
			}
			if err := write(); err != nil {
				return err
			}
			h.kube.next = h.kube.next.Add(-2 * kubeProxyLongest) // as if that time had passed
		}
		if n := strings.Count(said.String(), "took over from kube-proxy"); n != 1 {
			t.Errorf("the takeover is told %d times:\n%s", n, &said)
		}
		if n := strings.Count(said.String(), "still running"); n != 1 {
			t.Errorf("that kube-proxy runs is told %d times:\n%s", n, &said)
		}
		return nil
	})
}

// TestNotAsked: without Replace kube-proxy's rules are named, and stay.
func TestNotAsked(t *testing.T) {
	inside(t, func() error {
		var log []string
		var said strings.Builder
		if _, err := run(t.Context(), "table ip kube-proxy { }", "nft", "-f", "-"); err != nil {
			return err
		}
		h := New(Config{Log: slog.New(slog.NewTextHandler(&said, nil)), Datapath: &fake{name: "ours", log: &log}, KubeProxy: &KubeProxy{}})
		_, _ = h.Sync(t.Context(), table())
		remains, err := (&KubeProxy{}).Find(t.Context())
		if len(remains) != 1 || !strings.Contains(said.String(), "--replace-kube-proxy") {
			t.Errorf("left %v, said %s", remains, &said)
		}
		return err
	})
}
