package loadbalancer

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/ptr"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
)

// controllerState is the name of the controller's ConfigurationState.
const controllerState = "controller"

// maxNamedServices is the largest number of Services named in a ConfigurationState because their address is in no pool.
const maxNamedServices = 10

// A poolReport writes the use and the problems of pools into their statuses, into a ConfigurationState and into
// metrics.
type poolReport struct {
	store  *kube.Store
	uses   *kube.Feed[ipam.PoolUse] // from the statuses: Total is the number of free addresses
	states *kube.Feed[configState]
	writer *kube.StatusWriter[ipam.PoolUse]
	state  *kube.StatusWriter[configState]
	config configMetrics

	mu   sync.Mutex
	last ipam.Report
}

// A configState is the content of a ConfigurationState.
type configState struct{ Result, Summary string }

// The results of a ConfigurationState.
const resultValid, resultInvalid = "Valid", "Invalid"

func newPoolReport(log *slog.Logger, s *kube.Store) *poolReport {
	r := &poolReport{store: s}
	r.uses = kube.Open(s, metallbKind(s, "ipaddresspools", convertPoolUse))
	states := metallbKind(s, "configurationstates", convertConfigState)
	states.Only.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, controllerState).String() // each speaker has a ConfigurationState too
	r.states = kube.Open(s, states)
	r.writer = kube.NewStatusWriter(kube.StatusConfig[ipam.PoolUse]{Log: log, Owner: balancerOwner, Kind: "ipaddresspools", Apply: r.applyUse,
		Have: func(name api.Name) (ipam.PoolUse, bool) {
			u, ok := r.uses.Get(name)
			return ptr.Deref(u, ipam.PoolUse{}), ok
		},
	})
	r.state = kube.NewStatusWriter(kube.StatusConfig[configState]{Log: log, Owner: balancerOwner, Kind: "configurationstates", Apply: r.applyState,
		Have: func(name api.Name) (configState, bool) {
			c, ok := r.states.Get(name)
			return ptr.Deref(c, configState{}), ok
		},
		Make: func() bool { return r.states.Input().Listed() },
	})
	r.uses.Follow(func(name api.Name, _, _ *ipam.PoolUse, _ int64) { r.writer.Changed(name) })
	r.states.Follow(func(name api.Name, _, _ *configState, _ int64) { r.state.Changed(name) })
	r.states.OnSettle(func() { r.state.Changed(r.stateName()) })
	return r
}

func (r *poolReport) stateName() api.Name {
	return api.Name{Namespace: r.store.Config().LoadBalancerNamespace, Name: controllerState}
}

func (r *poolReport) run(ctx context.Context) {
	var writes sync.WaitGroup
	writes.Go(func() { _ = r.writer.Run(ctx) })
	writes.Go(func() { _ = r.state.Run(ctx) })
	writes.Wait()
}

// set queues a report.
func (r *poolReport) set(now ipam.Report) {
	r.mu.Lock()
	was := r.last
	r.last = now
	r.mu.Unlock()
	names := map[string]bool{}
	for _, u := range now.Pools {
		names[u.Pool] = true
		available := u
		available.Total4, available.Total6 = remaining(u.Total4, u.InUse4), remaining(u.Total6, u.InUse6)
		available.Services = 0 // MetalLB's status has no such field
		r.writer.Set(api.Name{Namespace: r.store.Config().LoadBalancerNamespace, Name: u.Pool}, available)
	}
	for _, u := range was.Pools {
		if !names[u.Pool] {
			r.writer.Forget(api.Name{Namespace: r.store.Config().LoadBalancerNamespace, Name: u.Pool})
		}
	}
	state := stateOf(now)
	r.config.set(state)
	r.state.Set(r.stateName(), state)
}

// remaining returns the number of free addresses. An endless pool stays endless. Addresses in use may be outside the
// pool's range.
func remaining(total, inUse int64) int64 {
	if total == math.MaxInt64 {
		return total
	}
	return max(total-inUse, 0)
}

// stateOf returns the problems of a report as one text.
func stateOf(r ipam.Report) configState {
	all := slices.Clip(r.Problems)
	for i, name := range r.Kept {
		if i == maxNamedServices {
			all = append(all, fmt.Sprintf("%d further Services keep such addresses", len(r.Kept)-i))
			break
		}
		all = append(all, fmt.Sprintf("Service %v keeps an address that is in no IPAddressPool [add it to a pool, or let the Service ask for another one]", name))
	}
	if len(all) == 0 {
		return configState{Result: resultValid}
	}
	return configState{resultInvalid, api.Cut(strings.Join(all, "\n"), 16<<10)}
}

func convertPoolUse(o *unstructured.Unstructured) *ipam.PoolUse {
	n := func(field string) int64 {
		v, _, _ := unstructured.NestedInt64(o.Object, "status", field) // an invalid number is overwritten
		return v
	}
	return &ipam.PoolUse{Pool: o.GetName(), Total4: n("availableIPv4"), Total6: n("availableIPv6"), InUse4: n("assignedIPv4"), InUse6: n("assignedIPv6")}
}

func convertConfigState(o *unstructured.Unstructured) *configState {
	text := func(field string) string {
		v, _, _ := unstructured.NestedString(o.Object, "status", field)
		return v
	}
	return &configState{text("result"), text("errorSummary")}
}

func (r *poolReport) applyUse(ctx context.Context, name api.Name, u ipam.PoolUse, how metav1.ApplyOptions) error {
	return applyMetallb(ctx, r.store, "ipaddresspools", "IPAddressPool", name, how, nil, map[string]any{
		"assignedIPv4": u.InUse4, "assignedIPv6": u.InUse6, "availableIPv4": u.Total4, "availableIPv6": u.Total6,
	})
}

func (r *poolReport) applyState(ctx context.Context, name api.Name, c configState, how metav1.ApplyOptions) error {
	return applyMetallb(ctx, r.store, "configurationstates", "ConfigurationState", name, how,
		labelled(map[string]string{"metallb.io/component-type": "controller"}), map[string]any{"result": c.Result, "errorSummary": c.Summary})
}

// applyMetallb is ApplyStatus for an object of metallb.io.
func applyMetallb(ctx context.Context, s *kube.Store, resource, kind string, name api.Name, how metav1.ApplyOptions, made, status map[string]any) error {
	return s.ApplyStatus(ctx, metallbResource(resource), kind, name, how, made, status)
}

// labelled returns metadata with labels.
func labelled(labels map[string]string) map[string]any { return map[string]any{"labels": labels} }

// The use of pools, with MetalLB's metric names.
var poolMetrics = [...]struct {
	desc  *prometheus.Desc
	value func(ipam.PoolUse) int64
}{
	{poolDesc("addresses_in_use_total", "Number of IP addresses in use of a pool"), func(u ipam.PoolUse) int64 { return u.InUse4 + u.InUse6 }},
	{poolDesc("ipv4_addresses_in_use_total", "Number of IPv4 addresses in use of a pool"), func(u ipam.PoolUse) int64 { return u.InUse4 }},
	{poolDesc("ipv6_addresses_in_use_total", "Number of IPv6 addresses in use of a pool"), func(u ipam.PoolUse) int64 { return u.InUse6 }},
	{poolDesc("addresses_total", "Number of usable IP addresses of a pool"), func(u ipam.PoolUse) int64 {
		if u.Total4 > math.MaxInt64-u.Total6 {
			return math.MaxInt64
		}
		return u.Total4 + u.Total6
	}},
	{poolDesc("ipv4_addresses_total", "Number of usable IPv4 addresses of a pool"), func(u ipam.PoolUse) int64 { return u.Total4 }},
	{poolDesc("ipv6_addresses_total", "Number of usable IPv6 addresses of a pool"), func(u ipam.PoolUse) int64 { return u.Total6 }},
	{poolDesc("services_allocated_total", "Number of Services that have addresses of a pool"), func(u ipam.PoolUse) int64 { return int64(u.Services) }},
}

func poolDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("metallb_allocator_"+name, help, []string{"pool"}, nil)
}

// Describe is a part of prometheus.Collector.
func (a *Addresses) Describe(c chan<- *prometheus.Desc) {
	for _, m := range poolMetrics {
		c <- m.desc
	}
	(*configMetrics)(nil).Describe(c)
}

// Collect is a part of prometheus.Collector.
func (a *Addresses) Collect(c chan<- prometheus.Metric) {
	a.report.config.Collect(c)
	a.report.mu.Lock()
	defer a.report.mu.Unlock()
	for _, u := range a.report.last.Pools {
		for _, m := range poolMetrics {
			c <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, float64(m.value(u)), u.Pool)
		}
	}
}
