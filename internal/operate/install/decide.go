package install

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/operate/settings"
	"github.com/fairway-net/fairway/internal/text"
)

// A decision is the plan of an installation, with its effects on other programs.
type decision struct {
	Settings
	notes   []string // messages for the user
	refused []error  // reasons against the installation
}

func (d *decision) refuse(format string, args ...any) {
	d.refused = append(d.refused, fmt.Errorf(format, args...))
}

func (d *decision) note(format string, args ...any) {
	d.notes = append(d.notes, fmt.Sprintf(format, args...))
}

// err joins the reasons for a refusal. It returns nil if there are none.
func (d *decision) err() error {
	if len(d.refused) == 0 {
		return nil
	}
	return fmt.Errorf("refused: %w", text.OneLine(errors.Join(d.refused...)))
}

// decide derives settings from the facts and the options. former are the settings of the existing installation, or nil.
func decide(manifests fs.FS, f *Facts, o Options, former *Settings) (*decision, error) {
	values, d := settings.Defaults(), &decision{}
	if former != nil {
		d.Settings = *former
		maps.Copy(values, former.Values)
	}
	d.live(values, f)
	if former == nil {
		d.Components = f.Components // of kubectl apply -k
	}
	d.Values = values
	if err := o.apply(values); err != nil {
		return nil, err
	}
	fresh := former == nil && f.Live == nil
	d.words(f)
	d.image(o)
	d.server(f, o)
	d.podCIDR(f, o, fresh)
	live := f.Live
	if live == nil && former != nil {
		live = former.Values // somebody has deleted the ConfigMap
	}
	d.podNetwork(f, o, fresh, former == nil, connectsPods(live))
	d.replace(f, o, fresh)
	d.dns(f, o, former)
	d.kernel(f)
	if err := d.WithComponents(manifests, o); err != nil {
		return nil, err
	}
	d.rival(f)
	d.gateways()
	d.idle()
	return d, nil
}

// live takes the values of the ConfigMap, which other programs may have changed since.
func (d *decision) live(values map[string]string, f *Facts) {
	var unknown []string
	for key, value := range f.Live {
		if s, ok := settings.For(key); ok {
			values[key] = s.OrDefault(value)
		} else {
			unknown = append(unknown, key)
		}
	}
	for key := range values {
		if s, _ := settings.For(key); f.Live != nil && f.Live[key] == "" && !s.Main {
			delete(values, key)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		d.note("no program reads these keys of ConfigMap %s: %s [docs/settings.md lists the settings]", agentName, strings.Join(unknown, ", "))
	}
}

// idle notes the settings that have no effect, because their component is missing.
func (d *decision) idle() {
	for _, key := range slices.Sorted(maps.Keys(d.Values)) {
		s, _ := settings.For(key)
		if value := d.Values[key]; value == "" || value == s.Default || len(s.Needs) == 0 {
			continue
		}
		there := slices.ContainsFunc(d.Components, func(name string) bool { return slices.Contains(s.Needs, name) })
		if !there {
			d.note("%s has no effect without component %s", key, strings.Join(s.Needs, " or "))
		}
	}
}

// words refuses settings that no program accepts. Its pod would not start.
func (d *decision) words(f *Facts) {
	for _, key := range slices.Sorted(maps.Keys(d.Values)) {
		value := d.Values[key]
		s, _ := settings.For(key)
		err := s.Check(value)
		if err == nil {
			continue
		}
		name := flagOf[key]
		if name == "" {
			name = key
		}
		if f.Live[key] == value {
			name = "ConfigMap fairway-agent, " + key
		}
		d.refuse("%s: %w", name, err)
	}
}

func (d *decision) image(o Options) {
	if o.Image != "" {
		d.Image = o.Image
	}
	if err := checkImage(d.Image); err != nil {
		d.refused = append(d.refused, err)
	}
}

// server takes the configured address if it can be right, else the detected one.
func (d *decision) server(f *Facts, o Options) {
	err := f.checkServer(d.Values[keyAPIServer])
	if err == nil {
		return
	}
	if o.APIServer != "" {
		d.refuse("--api-server: %w", err)
		return
	}
	if f.APIServer.Value == "" {
		d.refuse("found no address of the API server that nodes can use [give --api-server https://HOST:PORT]")
		return
	}
	d.Values[keyAPIServer] = f.APIServer.Value
	if f.APIServer.From == "endpoints of Service default/kubernetes" && len(f.controlPlanes()) > 1 {
		d.note("the API server's address is that of one of %d control plane nodes: give --api-server the address of their load balancer", len(f.controlPlanes()))
	}
}

func (f *Facts) controlPlanes() (names []string) {
	for _, n := range f.Nodes {
		if _, ok := n.Labels["node-role.kubernetes.io/control-plane"]; ok {
			names = append(names, n.Name)
		}
	}
	return names
}

// podCIDR takes the given addresses, else the previous ones, else the detected ones.
func (d *decision) podCIDR(f *Facts, o Options, fresh bool) {
	if o.ClusterCIDR == "" && fresh {
		d.Values[keyClusterCIDR] = f.ClusterCIDR.Value
	}
	value := d.Values[keyClusterCIDR]
	if value == "" {
		d.refuse("found no addresses of the pods [give --cluster-cidr, as the controller manager has it%s]", f.podCIDRHint())
		return
	}
	for data := range strings.SplitSeq(value, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(data))
		if err != nil {
			d.refuse("--cluster-cidr: %q is not a CIDR such as 10.244.0.0/16", data)
			continue
		}
		for _, s := range f.ServiceCIDRs {
			if p.Overlaps(s) {
				d.refuse("the pods' addresses %s overlap with those of Services, %s [correct --cluster-cidr]", p, s)
			}
		}
	}
}

// podCIDRHint returns the address range of one node, which lies in the wanted range.
func (f *Facts) podCIDRHint() string {
	for _, n := range f.Nodes {
		if len(n.Spec.PodCIDRs) > 0 {
			return "; node " + n.Name + " has " + strings.Join(n.Spec.PodCIDRs, ",")
		}
	}
	return ""
}

// podNetwork provides the pod network if no other program does. fresh means that no agent exists, first that this
// program has installed none, and ours that the pods use Fairway's pod network already.
func (d *decision) podNetwork(f *Facts, o Options, fresh, first, ours bool) {
	if fresh && (o.PodNetwork == "" || o.PodNetwork == Auto) {
		d.Values[keyPodNetwork] = none
		if f.CNI.Value == "" {
			d.Values[keyPodNetwork] = routes
		}
	}
	if !connectsPods(d.Values) {
		d.noPodNetwork(f, first && o.PodNetwork == "")
		return
	}
	if fresh && o.Set[keyPolicies] == "" {
		d.Values[keyPolicies] = yes // the API server accepts NetworkPolicies, and people expect that they count
	}
	switch {
	case ours || f.CNI.Value == "":
	case f.CNI == f.unknownCNI():
		d.note("%s: is there a CNI plugin that this program does not know? Its configuration in /etc/cni/net.d would come before or after Fairway's: docs/from-flannel.md", f.CNI.From)
	default:
		d.refuse("--pod-network %s: another CNI plugin connects the pods: %s (%s) [leave the flag out, or remove the plugin from all nodes first: docs/from-flannel.md]", d.Values[keyPodNetwork], f.CNI.Value, f.CNI.From)
	}
	if d.Values[keyPodNetwork] == byRouters && !slices.Contains(slices.Concat(d.Components, o.Components), "load-balancer") {
		d.refuse("--pod-network %s: the speaker has the sessions with the routers, and is not installed [add --component load-balancer, and BGPPeers: docs/podnetwork.md]", byRouters)
	}
	for _, n := range f.Nodes {
		if len(n.Spec.PodCIDRs) == 0 {
			d.refuse("--pod-network %s: node %s has no podCIDR [start the controller manager with --allocate-node-cidrs and --cluster-cidr]", d.Values[keyPodNetwork], n.Name)
		}
	}
}

// noPodNetwork reports that no program provides the pod network, also for the DNS pods. It refuses if the user did not
// ask for that, because kubectl apply -k deploy/ leaves the setting so.
func (d *decision) noPodNetwork(f *Facts, mistake bool) {
	switch {
	case f.CNI.Value != "":
	case mistake:
		d.refuse("no CNI plugin was found, and %s in the ConfigMap fairway-agent is none: no pod would start [give --pod-network routes, or --pod-network none if a plugin comes later]", keyPodNetwork)
	default:
		d.note("no CNI plugin was found, and the pod network is none: no pod starts until there is one (--pod-network routes makes Fairway's)")
	}
}

// replace decides about an existing kube-proxy.
func (d *decision) replace(f *Facts, o Options, fresh bool) {
	if o.ReplaceKubeProxy == Auto || o.ReplaceKubeProxy == "" && fresh {
		d.Values[keyReplace] = strconv.FormatBool(f.KubeProxy != nil && d.Values[keyMode] != none)
	}
	switch takes := d.Values[keyReplace] == yes; {
	case takes && d.Values[keyMode] == none:
		d.refuse("--replace-kube-proxy true: with --proxy-mode none no proxy would be left [choose another mode]")
	case takes && f.Embedded != "":
		d.refuse("--replace-kube-proxy true: a kube-proxy runs inside %s, and cannot be ended from here [restart all servers with --disable-kube-proxy]", f.Embedded)
	case !takes && f.Embedded != "" && d.Values[keyMode] != none:
		d.refuse("a kube-proxy runs inside %s [restart all servers with --disable-kube-proxy, or give --proxy-mode none]", f.Embedded)
	case !takes && f.KubeProxy != nil && d.Values[keyMode] != none && f.KubeProxy.Status.DesiredNumberScheduled > 0:
		d.note("kube-proxy goes on beside Fairway: both write rules for each Service (--replace-kube-proxy true ends it)")
	}
}

// dns decides which server answers at the Service kube-dns.
func (d *decision) dns(f *Facts, o Options, former *Settings) {
	switch o.DNS {
	case fairway:
		d.DNS = true
	case none:
		d.DNS = false
	case "", Auto:
		if former == nil {
			d.DNS = f.CoreDNS == nil
		}
	default:
		d.refuse("--dns %q: must be auto, fairway or none", o.DNS)
	}
	if d.DNS && f.DNS.Value == "" && len(d.DNSService) == 0 {
		d.DNSService = tenth(f.ServiceCIDRs)
		if len(d.DNSService) == 0 {
			d.refuse("there is no Service kube-system/kube-dns, and the addresses of Services were not found to make one [kubectl apply -k deploy/dns-service, or --dns none]")
			return
		}
		d.note("there is no Service kube-dns: it is made, with address %s; kubelets must have it as clusterDNS", strings.Join(d.DNSService, ","))
	}
	if !d.DNS {
		d.DNSService = nil
	}
}

// tenth returns the address that kubeadm gives to kube-dns, for each range.
func tenth(ranges []netip.Prefix) (addrs []string) {
	for _, p := range ranges {
		a := p.Masked().Addr()
		for range 10 {
			a = a.Next()
		}
		if p.Contains(a) {
			addrs = append(addrs, a.String())
		}
	}
	return addrs
}

// rival refuses a second program that gives addresses to load balancers: both would answer for the same addresses.
func (d *decision) rival(f *Facts) {
	if f.Rival.Value == "" || !givesAddresses(d.Settings) && !slices.Contains(d.Components, "servicelb") {
		return
	}
	d.refuse("%s gives addresses to Services of type LoadBalancer, too: %s [remove it first: docs/from-metallb.md; --force, if spec.loadBalancerClass keeps their Services apart]", f.Rival.Value, f.Rival.From)
}

// gateways refuses gateways without a controller: nobody would make their Services.
func (d *decision) gateways() {
	if d.Values[keyGateways] == yes && !hasController(d.Settings) {
		d.refuse("component gateway: the controller makes the Services of Gateways, and is not installed [add --component load-balancer, servicelb or controller: docs/gateway.md]")
	}
}

func (d *decision) kernel(f *Facts) {
	need := datapath.OldestKernel(d.Values[keyMode])
	var old []string
	for _, n := range f.Nodes {
		major, minor, ok := kernelVersion(n.Status.NodeInfo.KernelVersion)
		if ok && slices.Compare([]int{major, minor}, need[:]) < 0 {
			old = append(old, n.Name+" ("+n.Status.NodeInfo.KernelVersion+")")
		}
	}
	if len(old) > 0 {
		d.refuse("mode %s needs Linux %d.%d: %s [--proxy-mode iptables, or auto]", d.Values[keyMode], need[0], need[1], strings.Join(old, ", "))
	}
}

func kernelVersion(data string) (major, minor int, ok bool) {
	n, err := fmt.Sscanf(data, "%d.%d", &major, &minor)
	return major, minor, err == nil && n == 2
}
