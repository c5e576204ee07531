package takeover

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// Config says which datapath takes over from which. Log and Datapath are required.
type Config struct {
	Log      *slog.Logger
	Datapath datapath.Datapath
	// Others are the datapaths that may have carried Services here before. The Handover
	// closes each when nothing of it is left.
	Others []datapath.Datapath
	// KubeProxy finds what a kube-proxy leaves. Nil: the Handover does not look for it.
	KubeProxy *KubeProxy
	// Found is called with what a kube-proxy has left on the node, each time it is looked for;
	// stuck says why it cannot be looked for or removed. Nil: nothing is called.
	Found func(rules []string, stuck error)
	// Replace makes the Handover remove kube-proxy's rules; without it they are only logged.
	Replace bool
}

// A Handover carries Services with its Config's datapath and removes what other carriers
// left.
type Handover struct {
	datapath.Datapath
	cfg     Config
	others  []*other
	carries bool // our own rules are in place
	kube    kubeProxyWatch
}

// other is a datapath that may have left something.
type other struct {
	datapath.Datapath
	found  bool
	logged string // the last error that was logged
}

// New returns a Handover. It touches nothing.
func New(cfg Config) *Handover {
	h := &Handover{Datapath: cfg.Datapath, cfg: cfg}
	for _, o := range cfg.Others {
		h.others = append(h.others, &other{Datapath: o})
	}
	return h
}

// Sync implements datapath.Datapath. Others are removed in the same call: two tables, of
// which only one follows the cluster, see packets together for as short as possible.
func (h *Handover) Sync(ctx context.Context, want *service.Table) (datapath.Stats, error) {
	stats, err := h.Datapath.Sync(ctx, want)
	if err == nil {
		h.carries = true
		h.removeOthers(ctx)
	}
	return stats, err
}

// Check implements datapath.Datapath, and goes on with what is not done yet.
func (h *Handover) Check(ctx context.Context) (datapath.Drift, error) {
	if h.carries {
		h.removeOthers(ctx)
	}
	return h.Datapath.Check(ctx)
}

// Close implements datapath.Datapath.
func (h *Handover) Close() {
	for _, o := range h.others {
		o.Close()
	}
	h.Datapath.Close()
}

// removeOthers removes what can be removed now. A failure is only logged: our own rules are in
// place.
func (h *Handover) removeOthers(ctx context.Context) {
	h.others = slices.DeleteFunc(h.others, func(o *other) bool {
		done, err := h.leave(ctx, o)
		switch {
		case err != nil && ctx.Err() == nil && err.Error() != o.logged:
			h.cfg.Log.Warn("cannot remove the rules of another mode, will try again", "mode", o.Info().Name, "err", err)
			o.logged = err.Error()
		case done:
			o.Close()
		}
		return done
	})
	if h.cfg.KubeProxy != nil && h.kube.due() {
		h.kube.look(ctx, h.cfg)
	}
}

// leave removes what another mode left, as far as no connection needs it.
func (h *Handover) leave(ctx context.Context, o *other) (done bool, err error) {
	if !o.found {
		held, err := o.Adopt(ctx)
		if o.found = held.Found; !o.found {
			return err == nil, err
		}
		h.cfg.Log.Info("taking over from another mode", "mode", o.Info().Name, "ours", h.Info().Name)
	}
	done, err = o.Drain(ctx)
	if done {
		h.cfg.Log.Info("removed the rules of another mode", "mode", o.Info().Name)
	}
	return done, err
}

// How often a kube-proxy's rules are looked for. The pause doubles as long as there are
// none, up to a minute, and each time that they have come back: the agent does not compete
// with a kube-proxy that runs.
const (
	kubeProxyPause   = 5 * time.Second
	kubeProxyQuiet   = time.Minute
	kubeProxyLongest = 5 * time.Minute
)

// kubeProxyWatch is what is known of a kube-proxy on this node.
type kubeProxyWatch struct {
	next    time.Time
	pause   time.Duration
	removed bool   // its rules, at least once
	back    bool   // they had come back when last looked for
	logged  string // the last error that was logged
}

func (w *kubeProxyWatch) due() bool { return !time.Now().Before(w.next) }

// look removes what a kube-proxy wrote, and logs if kube-proxy seems to run still.
func (w *kubeProxyWatch) look(ctx context.Context, cfg Config) {
	if w.pause == 0 {
		w.pause = kubeProxyPause
	}
	defer func() { w.next = time.Now().Add(w.pause) }()
	remains, err := cfg.KubeProxy.Find(ctx)
	if err == nil && len(remains) > 0 && cfg.Replace {
		err = cfg.KubeProxy.Remove(ctx, remains)
	}
	if cfg.Found != nil && ctx.Err() == nil {
		cfg.Found(left(remains, cfg.Replace && err == nil), err)
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		if err.Error() != w.logged {
			cfg.Log.Warn("cannot remove kube-proxy's rules, will try again", "err", err)
			w.logged = err.Error()
		}
	case len(remains) == 0:
		w.back = false
		w.pause = min(2*w.pause, kubeProxyQuiet)
		if !cfg.Replace {
			w.pause = kubeProxyLongest // they stay whatever is found
		}
	case !cfg.Replace:
		if !w.back {
			cfg.Log.Warn("kube-proxy's rules are on this node beside ours [--replace-kube-proxy removes them]", "rules", names(remains))
		}
		w.back, w.pause = true, kubeProxyLongest
	case !w.removed:
		w.removed, w.pause = true, kubeProxyPause
		cfg.Log.Info("took over from kube-proxy: removed its rules", "rules", names(remains))
	default:
		w.pause = min(2*w.pause, kubeProxyLongest)
		if !w.back {
			cfg.Log.Warn("kube-proxy is still running on this node: its rules came back, and were removed again [end it: kubectl -n kube-system delete daemonset kube-proxy]", "rules", names(remains))
		}
		w.back = true
	}
}

// left returns what remains of a kube-proxy after it was removed, or not.
func left(remains []Remain, removed bool) (texts []string) {
	if removed {
		return nil
	}
	for _, r := range remains {
		texts = append(texts, r.String())
	}
	return texts
}
