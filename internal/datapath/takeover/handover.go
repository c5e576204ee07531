package takeover

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// Config configures a Handover. Log and Datapath are required.
type Config struct {
	Log      *slog.Logger
	Datapath datapath.Datapath
	// Others are the datapaths that may have carried Services on this node before. The Handover closes each when its
	// rules are gone.
	Others []datapath.Datapath
	// KubeProxy finds kube-proxy's rules. Nil: the Handover does not look for them.
	KubeProxy *KubeProxy
	// Found is called after each look for kube-proxy, with the rules that remain on the node. stuck is the error of the
	// look or of the removal. Found may be nil.
	Found func(rules []string, stuck error)
	// Replace makes the Handover remove kube-proxy's rules. Without it they are only logged.
	Replace bool
}

// A Handover carries Services with its Config's datapath, and removes the rules of other modes and of kube-proxy.
type Handover struct {
	datapath.Datapath
	cfg     Config
	others  []*other
	carries bool // our own rules are in place
	kube    kubeProxyWatch
}

// other is a datapath that may have left rules.
type other struct {
	datapath.Datapath
	found  bool
	logged string // the last error that was logged
}

// New returns a Handover. It does not touch the kernel.
func New(cfg Config) *Handover {
	h := &Handover{Datapath: cfg.Datapath, cfg: cfg}
	for _, o := range cfg.Others {
		h.others = append(h.others, &other{Datapath: o})
	}
	return h
}

// Sync implements datapath.Datapath. It removes the others in the same call, because packets should pass through two
// tables, of which only one is kept up to date, for as short as possible.
func (h *Handover) Sync(ctx context.Context, want *service.Table) (datapath.Stats, error) {
	stats, err := h.Datapath.Sync(ctx, want)
	if err == nil {
		h.carries = true
		h.removeOthers(ctx)
	}
	return stats, err
}

// Check implements datapath.Datapath, and continues the removal.
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

// removeOthers removes the rules that can be removed now. It only logs a failure, because our own rules are in place.
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

// leave removes the rules of another mode that no connection needs. done is true when none are left.
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

// Pauses between looks for kube-proxy's rules. The pause doubles while there are none. It also doubles each time that the
// rules came back, because the agent must not compete with a running kube-proxy. But when that kube-proxy ends, nobody
// keeps its last rules up to date, and a packet may meet them before ours. So they stay for a minute at most.
const (
	kubeProxyPause   = 5 * time.Second
	kubeProxyLongest = time.Minute
	kubeProxyUnasked = 5 * time.Minute // without Replace, when the result only feeds a log message
)

// kubeProxyWatch has the results of the looks for kube-proxy.
type kubeProxyWatch struct {
	next    time.Time
	pause   time.Duration
	removed bool   // its rules were removed at least once
	back    bool   // the last look found rules that stay, or that came back
	logged  string // the last error that was logged
}

func (w *kubeProxyWatch) due() bool { return !time.Now().Before(w.next) }

// look removes kube-proxy's rules, and logs if kube-proxy seems to be running.
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
		w.pause = min(2*w.pause, kubeProxyLongest)
		if !cfg.Replace {
			w.pause = kubeProxyUnasked
		}
	case !cfg.Replace:
		if !w.back {
			cfg.Log.Warn("kube-proxy's rules are on this node beside ours [--replace-kube-proxy removes them]", "rules", names(remains))
		}
		w.back, w.pause = true, kubeProxyUnasked
	case !w.removed:
		w.removed, w.pause = true, kubeProxyPause
		cfg.Log.Info("took over from kube-proxy: removed its rules", "rules", names(remains))
	default:
		w.pause = min(2*w.pause, kubeProxyLongest)
		if !w.back {
			cfg.Log.Warn("kube-proxy is still running on this node: its rules came back, and were removed again [kubeadm upgrade has started it: fairway upgrade ends it again; or kubectl -n kube-system delete daemonset kube-proxy]", "rules", names(remains))
		}
		w.back = true
	}
}

// left returns the names of remains, or nil if they were removed.
func left(remains []Remain, removed bool) (texts []string) {
	if removed {
		return nil
	}
	for _, r := range remains {
		texts = append(texts, r.String())
	}
	return texts
}
