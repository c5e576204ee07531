package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairway-net/fairway/internal/kube/objects"
)

// An Installer runs the commands.
type Installer struct {
	API       API
	Manifests fs.FS // the directory deploy
	Out       io.Writer
	Version   string // version of this program
	DryRun    bool   // show the changes, and make none
	Force     bool   // accept what a change ends
	Timeout   time.Duration
	Poll      time.Duration // time between two checks while waiting
}

// errNotInstalled is returned for a cluster without revisions.
var errNotInstalled = errors.New("fairway install has not been here [fairway install; it also takes over what kubectl apply -k has made]")

func (i *Installer) say(format string, args ...any) { fmt.Fprintf(i.Out, format+"\n", args...) }

// Install puts Fairway on a cluster without an installation by this program.
func (i *Installer) Install(ctx context.Context, o Options) error {
	inv, err := loadInventory(ctx, i.API)
	if err != nil {
		return err
	}
	if c := inv.current(); c != nil && c.Done {
		return fmt.Errorf("fairway is installed: revision %d, by fairway %s [fairway upgrade changes it]", c.Number, c.Program)
	}
	return i.render(ctx, inv, o, "install")
}

// Upgrade applies this program's manifests and the options to an existing installation. Other settings stay.
func (i *Installer) Upgrade(ctx context.Context, o Options) error {
	inv, err := loadInventory(ctx, i.API)
	if err != nil {
		return err
	}
	if inv.current() == nil {
		return errNotInstalled
	}
	return i.render(ctx, inv, o, "upgrade")
}

// render decides about the settings and applies them.
func (i *Installer) render(ctx context.Context, inv *inventory, o Options, what string) error {
	facts, err := i.detect(ctx)
	if err != nil {
		return err
	}
	var former *Settings
	if c := inv.current(); c != nil {
		former = &c.Settings
	}
	if i.Force {
		facts.Rival = Finding{}
	}
	d, err := decide(i.Manifests, facts, o, former)
	if err != nil {
		return err
	}
	i.show(facts, d)
	if err := d.err(); err != nil {
		return err
	}
	if err := i.noteGatewayAPI(ctx, d.Settings); err != nil {
		return err
	}
	wanted, err := Render(i.Manifests, d.Settings)
	if err != nil {
		return err
	}
	lost, err := i.lossOf(ctx, inv, facts, d.Settings, o.chosen()...)
	if err != nil {
		return err
	}
	return i.carryOut(ctx, inv, &revision{What: what, Settings: d.Settings, objects: wanted}, lost)
}

// detect collects the facts of the cluster, with the components of Fairway that run there.
func (i *Installer) detect(ctx context.Context) (*Facts, error) {
	f, err := Detect(ctx, i.API)
	if err != nil || f.Live == nil {
		return f, err
	}
	f.Components, err = liveComponents(ctx, i.API, i.Manifests)
	return f, err
}

// show prints the facts and the decision.
func (i *Installer) show(f *Facts, d *decision) {
	w := tabwriter.NewWriter(i.Out, 0, 0, 2, ' ', 0)
	distribution := f.Distribution
	if distribution == "" {
		distribution = "cluster"
	}
	fmt.Fprintf(w, "%s\tKubernetes %s, nodes: %d\n", distribution, f.Version, len(f.Nodes))
	from := func(value string, found Finding) string {
		if value == found.Value {
			return value + "  (" + found.From + ")"
		}
		return value
	}
	fmt.Fprintf(w, "API server\t%s\n", from(d.Values[keyAPIServer], f.APIServer))
	fmt.Fprintf(w, "pods\t%s\n", from(d.Values[keyClusterCIDR], f.ClusterCIDR))
	var ranges []string
	for _, p := range f.ServiceCIDRs {
		ranges = append(ranges, p.String())
	}
	fmt.Fprintf(w, "Services\t%s, mode %s\n", strings.Join(ranges, ","), d.Values[keyMode])
	cni := "none found"
	if f.CNI.Value != "" {
		cni = f.CNI.Value + "  (" + f.CNI.From + ")"
	}
	if connectsPods(d.Values) {
		cni = "Fairway's"
		if way := d.Values[keyPodNetwork]; way != routes {
			cni += ", " + way
		}
	}
	fmt.Fprintf(w, "pod network\t%s\n", cni)
	fmt.Fprintf(w, "kube-proxy\t%s\n", d.kubeProxyText(f))
	fmt.Fprintf(w, "DNS\t%s\n", d.dnsText(f))
	fmt.Fprintf(w, "image\t%s\n", d.Image)
	if len(d.Components) > 0 {
		fmt.Fprintf(w, "components\t%s\n", strings.Join(d.Components, ", "))
	}
	w.Flush()
	for _, n := range d.notes {
		i.say("note: %s", n)
	}
}

func (d *decision) kubeProxyText(f *Facts) string {
	switch {
	case f.KubeProxy == nil && f.Embedded == "":
		return "none"
	case f.KubeProxy == nil:
		return "in " + f.Embedded
	case d.Values[keyReplace] == yes:
		return "DaemonSet kube-system/kube-proxy: replaced, and kept for the way back"
	}
	return "DaemonSet kube-system/kube-proxy: stays"
}

func (d *decision) dnsText(f *Facts) string {
	switch {
	case d.DNS && f.CoreDNS != nil:
		return "Fairway's, in place of Deployment kube-system/coredns"
	case d.DNS:
		return "Fairway's"
	}
	return "the cluster's"
}

// carryOut applies r, or shows what would change.
func (i *Installer) carryOut(ctx context.Context, inv *inventory, r *revision, lost []loss) error {
	gone := inv.gone(r.objects)
	p, err := planOf(ctx, i.API, r.objects, gone)
	if err != nil {
		return err
	}
	others, err := i.handovers(ctx, inv, r)
	if err != nil {
		return err
	}
	i.say("")
	p.write(i.Out)
	for _, h := range others {
		i.say("  %-6s  %s", change, h)
	}
	if err := i.refuseLosses(lost); err != nil {
		return err
	}
	if i.DryRun {
		n := p.changes() + len(others)
		i.say("\ndry run: %d %s would change, nothing was changed", n, map[bool]string{true: "object", false: "objects"}[n == 1])
		return nil
	}
	before, err := i.served(ctx)
	if err != nil {
		return err
	}
	r.Time, r.Program = time.Now().UTC().Truncate(time.Second), i.Version
	inv.add(r)
	if err := inv.save(ctx, i.API); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, i.Timeout, fmt.Errorf("not ready after %s", i.Timeout))
	defer cancel()
	err = i.change(ctx, inv, r, gone)
	if err == nil && len(lost) == 0 {
		err = i.waitServed(ctx, before)
	}
	if err != nil {
		return fmt.Errorf("%s, revision %d: %w%s", r.What, r.Number, err, inv.wayBack())
	}
	r.Done = true
	if err := inv.save(ctx, i.API); err != nil {
		return err
	}
	i.say("\ndone: revision %d", r.Number)
	return nil
}

// wayBack returns advice for an error that leaves a cluster half-way.
func (inv *inventory) wayBack() string {
	if _, err := inv.former(0); err == nil {
		return " [correct it and try again, or fairway rollback]"
	}
	return " [correct it and try again, or fairway uninstall]"
}

// change applies a revision. Services and DNS always have a server: the new one runs before the old one stops.
func (i *Installer) change(ctx context.Context, inv *inventory, r *revision, gone []objects.Ref) error {
	if err := i.giveBackDNS(ctx, inv, r.Settings); err != nil {
		return err
	}
	i.say("")
	for _, o := range r.objects {
		if err := i.apply(ctx, o); err != nil {
			return err
		}
	}
	i.say("applied %d objects", len(r.objects))
	if err := i.waitFor(ctx, r.objects); err != nil {
		return err
	}
	for _, ref := range gone {
		if err := i.API.Delete(ctx, ref); err != nil {
			return err
		}
	}
	if !givesAddresses(r.Settings) {
		if err := i.waitGone(ctx, inv.named(gone)); err != nil {
			return err
		}
		if err := i.letGo(ctx); err != nil {
			return err
		}
	}
	if err := i.takeProxy(ctx, inv, r.Settings); err != nil {
		return err
	}
	if err := i.giveBackProxy(ctx, inv, r.Settings.Values[keyReplace] == yes); err != nil {
		return err
	}
	return i.takeDNS(ctx, inv, r.Settings)
}

// apply applies one object. An object of a kind that was just defined waits for the kind.
func (i *Installer) apply(ctx context.Context, o *unstructured.Unstructured) error {
	var failed error
	err := i.until(ctx, func(ctx context.Context) (bool, error) {
		_, failed = i.API.Apply(ctx, o, false)
		if errors.Is(failed, objects.ErrNoKind) {
			return false, nil
		}
		return true, failed
	})
	if err != nil {
		return errors.Join(err, failed)
	}
	return nil
}

// Rollback applies the objects of an earlier revision. 0 means the last finished one.
func (i *Installer) Rollback(ctx context.Context, number int) error {
	inv, err := loadInventory(ctx, i.API)
	if err != nil {
		return err
	}
	if inv.current() == nil {
		return errNotInstalled
	}
	to, err := inv.former(number)
	if err != nil {
		return err
	}
	i.say("back to revision %d: fairway %s, of %s", to.Number, to.Program, to.Time.Format(time.RFC3339))
	facts, err := i.detect(ctx)
	if err != nil {
		return err
	}
	lost, err := i.lossOf(ctx, inv, facts, to.Settings)
	if err != nil {
		return err
	}
	return i.carryOut(ctx, inv, &revision{
		What: fmt.Sprintf("rollback to %d", to.Number), Settings: to.Settings, objects: to.objects,
	}, lost)
}

// History prints the revisions.
func (i *Installer) History(ctx context.Context) error {
	inv, err := loadInventory(ctx, i.API)
	if err != nil {
		return err
	}
	if inv.current() == nil {
		return errNotInstalled
	}
	w := tabwriter.NewWriter(i.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "REVISION\tTIME\tFAIRWAY\tWHAT\tSTATE\tIMAGE\tMODE\tCOMPONENTS")
	for _, r := range inv.Revisions {
		state := "former"
		if r == inv.current() {
			state = "current"
		}
		if !r.Done {
			state = "cut off"
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Number, r.Time.Format(time.RFC3339), r.Program, r.What, state,
			r.Settings.Image, r.Settings.Values[keyMode], strings.Join(r.Settings.Components, ","))
	}
	return w.Flush()
}

// until calls done every Poll until it returns true or an error, or ctx ends.
func (i *Installer) until(ctx context.Context, done func(context.Context) (bool, error)) error {
	tick := time.NewTicker(i.Poll)
	defer tick.Stop()
	for {
		ok, err := done(ctx)
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// workloads returns the objects whose pods a run waits for. DaemonSets come first, because others may need them.
func workloads(all []*unstructured.Unstructured) (found []*unstructured.Unstructured) {
	for _, kind := range []string{"DaemonSet", "Deployment"} {
		for _, o := range all {
			if o.GetKind() == kind {
				found = append(found, o)
			}
		}
	}
	return found
}
