package page

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/path"
	web "github.com/fairway-net/fairway/internal/path/page"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/text"
)

const (
	publishEvery  = time.Second
	announceEvery = 30 * time.Second
	announceLeast = 10 * time.Second // between two reads, although a Service of type LoadBalancer changed
	announceTick  = 2 * time.Second
	announceLimit = 15 * time.Second
	// firstLists is the time after which lists that have not come count as not answered.
	firstLists = 10 * time.Second
	maxNodes   = 1000 // that a person chooses from
	maxCells   = 8    // addresses, ports or announcers of one row
)

const advice = "see --kubeconfig and --context; the page goes on when the API server answers"

// A publisher writes the rows and the state of a page.
type publisher struct {
	source *source
	page   *web.Page

	mu         sync.Mutex
	announcers map[api.Name][]string
	notKnown   string     // why the announcers are not known
	stale      bool       // a Service of type LoadBalancer changed
	moved      []api.Name // Services with new announcers and old rows
}

// run writes rows at most once a second, until ctx or a part of the command ends.
func (p *publisher) run(ctx context.Context, ended <-chan error) error {
	tick := time.NewTicker(publishEvery)
	defer tick.Stop()
	begun := time.Now()
	synced := p.source.live.Synced()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case <-synced:
			synced = nil
			p.pass(true, false)
		case <-tick.C:
			p.pass(synced == nil, synced != nil && time.Since(begun) > firstLists)
		}
	}
}

// pass writes the changed rows, and the state.
func (p *publisher) pass(loaded, late bool) {
	if loaded {
		p.mu.Lock()
		names := append(p.source.take(), p.moved...)
		p.moved = nil
		p.mu.Unlock()
		p.publish(names)
	}
	s := web.State{Cluster: p.source.server, Loaded: loaded, Nodes: p.source.nodeNames()}
	if err := p.source.live.Store.Unread(late, advice); err != nil {
		s.Error, s.Advice = text.SplitHint(text.OneLine(err).Error())
		if loaded {
			s.Error += "; the page shows the last state that it knows"
		}
	}
	for _, t := range p.source.live.Store.Troubles() {
		if t.Without != "" && t.Refused && t.Kind == "nodes" {
			s.Warnings = append(s.Warnings, "Nodes cannot be listed ("+t.Err.Error()+"), so no zone and no NodePort address is known.")
		}
	}
	p.mu.Lock()
	if p.notKnown != "" && s.Error == "" {
		s.Warnings = append(s.Warnings, "Who announces the addresses is not known: "+p.notKnown)
	}
	p.mu.Unlock()
	p.page.SetState(s)
}

// publish writes the rows of some Services.
func (p *publisher) publish(names []api.Name) {
	var rows []web.Service
	var gone []string
	for _, name := range names {
		svc, ok := p.source.live.Service(name)
		if !ok {
			gone = append(gone, name.String())
			continue
		}
		p.mu.Lock()
		p.stale = p.stale || svc.Type == loadBalancer
		announcers := p.announcers[name]
		p.mu.Unlock()
		rows = append(rows, row(svc, p.source.live.Slices(name), announcers))
	}
	if len(rows)+len(gone) > 0 {
		p.page.Set(rows, gone)
	}
}

const loadBalancer = "LoadBalancer"

// followAnnouncers reads the announcers of all addresses, while a browser shows the page.
func (p *publisher) followAnnouncers(ctx context.Context) {
	tick := time.NewTicker(announceTick)
	defer tick.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p.mu.Lock()
		due := p.stale && time.Since(last) > announceLeast || time.Since(last) > announceEvery
		p.mu.Unlock()
		if due && p.page.Watched() {
			p.readAnnouncers(ctx)
			last = time.Now()
		}
	}
}

// readAnnouncers asks the API server once, if the cluster has Services of type LoadBalancer.
func (p *publisher) readAnnouncers(ctx context.Context) {
	p.mu.Lock()
	p.stale = false
	p.mu.Unlock()
	now, notKnown := map[api.Name][]string{}, ""
	if slices.ContainsFunc(p.source.live.Services(), func(s *path.Service) bool { return s.Type == loadBalancer }) {
		ctx, cancel := context.WithTimeout(ctx, announceLimit)
		defer cancel()
		all, err := p.source.balancers.Report(ctx)
		if err != nil {
			notKnown = text.OneLine(err).Error()
		}
		for _, a := range all.Addresses {
			for _, s := range a.Services {
				name, err := api.ParseName(s)
				if err != nil {
					continue
				}
				for _, x := range a.Announced {
					if node := cmp.Or(x.Node, string(x.Protocol)); !slices.Contains(now[name], node) {
						now[name] = append(now[name], node)
					}
				}
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.notKnown = notKnown; notKnown != "" {
		return // the last known announcers stay
	}
	for _, all := range []map[api.Name][]string{p.announcers, now} {
		for name := range all {
			if !slices.Equal(p.announcers[name], now[name]) {
				p.moved = append(p.moved, name)
			}
		}
	}
	p.announcers = now
}

// row describes one Service.
func row(svc *path.Service, eps []*service.Slice, announcers []string) web.Service {
	r := web.Service{Namespace: svc.Name.Namespace, Name: svc.Name.Name, Type: svc.Type, Announcers: few(announcers)}
	for _, a := range slices.Concat(svc.ClusterIPs, svc.ExternalIPs, svc.BalancerIPs, svc.ProxyIPs) {
		r.Addresses = append(r.Addresses, a.String())
	}
	switch {
	case svc.ExternalName != "":
		r.Addresses = []string{svc.ExternalName}
	case svc.Headless:
		r.Addresses = append([]string{"headless"}, r.Addresses...)
	case svc.Type == loadBalancer && len(svc.BalancerIPs)+len(svc.ProxyIPs) == 0:
		r.Addresses = append(r.Addresses, "<pending>")
	}
	for _, x := range svc.Ports {
		port := fmt.Sprintf("%d/%v", x.Port.Port, x.Proto)
		if x.NodePort != 0 {
			port = fmt.Sprintf("%d:%d/%v", x.Port.Port, x.NodePort, x.Proto)
		}
		r.Ports = append(r.Ports, port)
	}
	r.Addresses, r.Ports = few(r.Addresses), few(r.Ports)
	r.Ready, r.Endpoints = countEndpoints(eps)
	switch {
	case len(svc.Problems) > 0:
		r.Finding = svc.Problems[0].Message
	case svc.ExternalName != "":
	case r.Endpoints == 0:
		r.Finding = "no endpoints"
	case r.Ready == 0:
		r.Finding = "no endpoint is ready"
	}
	return r
}

// few cuts a list to the length that a person reads in one cell.
func few(all []string) []string {
	if over := len(all) - maxCells; over > 0 {
		return append(slices.Clone(all[:maxCells]), fmt.Sprintf("and %d more", over))
	}
	return all
}

// countEndpoints counts each pod once, although a dual-stack pod has two addresses.
func countEndpoints(eps []*service.Slice) (ready, all int) {
	type end struct {
		pod  string
		addr netip.Addr
	}
	seen := map[end]bool{}
	for _, slice := range eps {
		for i, ep := range slice.Endpoints {
			e := end{pod: slice.Pods.At(i)}
			if e.pod == "" {
				e.addr = ep.Addr
			}
			seen[e] = seen[e] || ep.Ready
		}
	}
	for _, is := range seen {
		if is {
			ready++
		}
	}
	return ready, len(seen)
}

// nodeNames returns the names of the nodes, sorted.
func (s *source) nodeNames() []string {
	all := s.live.Nodes()
	names := make([]string, 0, len(all))
	for _, n := range all {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return names[:min(len(names), maxNodes)]
}

// node returns the node of that name, or the first.
func (s *source) node(name string) (found kube.Node, ok bool) {
	for _, n := range s.live.Nodes() {
		if n.Name == name || name == "" && (!ok || n.Name < found.Name) {
			found, ok = *n, true
		}
	}
	return found, ok
}
