package takeover

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// fake is a datapath that keeps a log of what was asked of it.
type fake struct {
	datapath.Datapath // nil: nothing else is asked
	name              string
	log               *[]string
	held              *service.Table
	err               error // of the next calls
}

func (f *fake) note(verb string) error {
	*f.log = append(*f.log, f.name+" "+verb)
	return f.err
}

func (f *fake) Info() datapath.Info { return datapath.Info{Name: f.name} }
func (f *fake) Sync(_ context.Context, want *service.Table) (datapath.Stats, error) {
	err := f.note("sync")
	if err == nil {
		f.held = want
	}
	return datapath.Stats{}, err
}
func (f *fake) Check(context.Context) (datapath.Drift, error) {
	return datapath.Drift{}, f.note("check")
}
func (f *fake) Adopt(context.Context) (datapath.Adopted, error) {
	return datapath.Adopted{Table: cmp.Or(f.held, &service.Table{}), Found: f.held != nil}, nil
}
func (f *fake) Drain(context.Context) (bool, error) {
	err := f.note("drain")
	if err == nil {
		f.held = nil
	}
	return err == nil, err
}
func (f *fake) Close() { _ = f.note("close") }

// slow needs some calls until its connections have ended.
type slow struct {
	fake
	calls int
}

func (s *slow) Adopt(context.Context) (datapath.Adopted, error) {
	return datapath.Adopted{Table: &service.Table{}, Found: s.calls > 0}, nil
}
func (s *slow) Drain(context.Context) (bool, error) {
	err := s.note("drain")
	s.calls--
	return s.calls == 0, err
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
	carrying := &slow{fake{name: "slow", log: &log}, 2}
	absent := &slow{fake{name: "absent", log: &log}, 0}
	var logged strings.Builder
	h := New(Config{
		Log: slog.New(slog.NewTextHandler(&logged, nil)), Datapath: ours, Others: []datapath.Datapath{plain, nothing, carrying, absent},
	})
	_, err := h.Sync(t.Context(), table())
	if err == nil {
		t.Error("the error of our Sync is lost")
	}
	_, _ = h.Check(t.Context())
	expect(t, &log, "ours sync", "ours check")

	ours.err, plain.err = nil, errors.New("busy")
	if _, err := h.Sync(t.Context(), table()); err != nil {
		t.Errorf("our Sync fails because another mode cannot be removed: %v", err)
	}
	expect(t, &log, "ours sync", "plain drain", "nothing close", "slow drain", "absent close")

	plain.err = nil
	_, _ = h.Check(t.Context())
	expect(t, &log, "plain drain", "plain close", "slow drain", "slow close", "ours check")
	_, _ = h.Sync(t.Context(), table())
	expect(t, &log, "ours sync")
	h.Close()
	expect(t, &log, "ours close")
	if n := strings.Count(logged.String(), "busy"); n != 1 {
		t.Errorf("the failure is logged %d times, want once:\n%s", n, &logged)
	}
}

// TestCloseEarly: a Handover that never got to carry closes all.
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
		var logged strings.Builder
		ours := &fake{name: "ours", log: &log, err: errors.New("not yet")}
		h := New(Config{Log: slog.New(slog.NewTextHandler(&logged, nil)), Datapath: ours, KubeProxy: &KubeProxy{}, Replace: true})
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
		for range 8 {
			_, _ = h.Sync(t.Context(), table())
			if there() {
				t.Error("kube-proxy's rules are still there")
			}
			if err := write(); err != nil {
				return err
			}
			if h.kube.pause > time.Minute {
				t.Errorf("the rules of a kube-proxy that has ended may stay for %v", h.kube.pause)
			}
			h.kube.next = h.kube.next.Add(-h.kube.pause) // as if that time had passed
		}
		if n := strings.Count(logged.String(), "took over from kube-proxy"); n != 1 {
			t.Errorf("the takeover is logged %d times:\n%s", n, &logged)
		}
		if n := strings.Count(logged.String(), "still running"); n != 1 {
			t.Errorf("the running kube-proxy is logged %d times:\n%s", n, &logged)
		}
		return nil
	})
}

// TestNotAsked: without Replace kube-proxy's rules are named, and stay.
func TestNotAsked(t *testing.T) {
	inside(t, func() error {
		var log []string
		var logged strings.Builder
		if _, err := run(t.Context(), "table ip kube-proxy { }", "nft", "-f", "-"); err != nil {
			return err
		}
		h := New(Config{Log: slog.New(slog.NewTextHandler(&logged, nil)), Datapath: &fake{name: "ours", log: &log}, KubeProxy: &KubeProxy{}})
		_, _ = h.Sync(t.Context(), table())
		remains, err := (&KubeProxy{}).Find(t.Context())
		if len(remains) != 1 || !strings.Contains(logged.String(), "--replace-kube-proxy") {
			t.Errorf("left %v, logged %s", remains, &logged)
		}
		return err
	})
}
