package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	k8svalidation "k8s.io/apimachinery/pkg/util/validation"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/kube"
)

// owner is the field manager of everything that the controller writes for gateways.
const owner = "fairway-gateway"

// annotationAddresses asks ipam for addresses.
const annotationAddresses = "metallb.io/loadBalancerIPs"

// serviceName returns the name of a Gateway's Service. It is a DNS label, and no other Gateway of the namespace has it.
func serviceName(gateway string) string {
	name := gateway + "-fairway"
	if len(k8svalidation.IsDNS1035Label(name)) == 0 {
		return name
	}
	h := fnv.New64a()
	h.Write([]byte(gateway))
	return fmt.Sprintf("gateway-%016x", h.Sum64())
}

// A wantedService is the controller's part of a Gateway's Service. It is compared by reflection.
type wantedService struct {
	Gone    bool // there is no Service
	Gateway string
	UID     string // of the Gateway
	Version string // of the labels and annotations
	Ports   string // "tcp-80 tcp-443"
	Local   bool
}

// serviceMeta is what Version stands for.
type serviceMeta struct{ labels, annotations map[string]string }

// An ownService is a Service of a Gateway as it was read.
type ownService struct {
	wantedService
	addresses []string
	missing   string // why it has no address; empty: unknown
}

func portName(key gateway.BindKey) string {
	return strings.ToLower(key.Proto.String()) + "-" + strconv.Itoa(int(key.Port))
}

// portNames returns the names of ports, as wantedService has them.
func portNames(keys []gateway.BindKey) string {
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = portName(key)
	}
	return strings.Join(names, " ")
}

// wantService returns the Service of a Gateway that serves these ports.
func wantService(g *gateway.Gateway, ports portMap, streams bool) (wantedService, serviceMeta) {
	m := serviceMeta{labels: map[string]string{}, annotations: map[string]string{}}
	for k, v := range g.InfrastructureLabels {
		m.labels[k] = v
	}
	for k, v := range g.InfrastructureAnnotations {
		m.annotations[k] = v
	}
	m.labels[gatewayv1.GatewayNameLabelKey], m.labels[gatewayv1.GatewayClassNameLabelKey] = labelValue(g.Name.Name), labelValue(g.Class)
	var static []string
	for _, a := range g.Addresses {
		if a.IsValid() {
			static = append(static, a.String())
		}
	}
	if len(static) > 0 {
		m.annotations[annotationAddresses] = strings.Join(static, ",")
	}
	if streams {
		m.annotations[kube.AnnotationWeights] = "true"
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%v %v", m.labels, m.annotations) // maps are printed in the order of their keys
	// The node that announces the address needs an endpoint of each port. A stream's endpoints are the backends, which
	// may be on other nodes than the gateway's pods.
	return wantedService{Gateway: g.Name.Name, UID: g.UID, Version: fmt.Sprintf("%016x", h.Sum64()), Ports: portNames(sortedKeys(ports)), Local: !streams || len(ports) == 1}, m
}

// labelValue cuts a name to the length of a label's value.
func labelValue(name string) string {
	if len(name) <= k8svalidation.LabelValueMaxLength {
		return name
	}
	h := fnv.New32a()
	h.Write([]byte(name))
	return fmt.Sprintf("%s-%08x", strings.TrimRight(name[:54], "-."), h.Sum32())
}

// convertOwnService reads a Service with the label of a Gateway.
func convertOwnService(o *corev1.Service) *ownService {
	s := &ownService{wantedService: wantedService{
		Version: o.Annotations[kube.AnnotationGateway],
		Local:   o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
	}}
	for _, r := range o.OwnerReferences {
		if r.Kind == kindGateway && strings.HasPrefix(r.APIVersion, groupGateway+"/") {
			s.Gateway, s.UID = r.Name, string(r.UID)
		}
	}
	var keys []gateway.BindKey
	for _, p := range o.Spec.Ports {
		if proto, err := api.ParseProto(string(p.Protocol)); err == nil && kube.ValidPort(p.Port) {
			keys = append(keys, gateway.BindKey{Proto: proto, Port: uint16(p.Port)})
		}
	}
	slices.SortFunc(keys, compareKeys)
	s.Ports = portNames(keys)
	if o.Spec.Type != corev1.ServiceTypeLoadBalancer || len(o.Spec.Selector) > 0 {
		s.Ports = "changed by others"
	}
	s.addresses = balancerAddresses(o)
	for _, c := range o.Status.Conditions {
		if c.Type == "fairway.net/AddressMissing" && c.Status == metav1.ConditionTrue {
			s.missing = c.Message
		}
	}
	return s
}

func balancerAddresses(o *corev1.Service) (all []string) {
	for _, i := range o.Status.LoadBalancer.Ingress {
		if a := cmp.Or(i.IP, i.Hostname); a != "" {
			all = append(all, a)
		}
	}
	return all
}

// applyService writes or deletes a Gateway's Service.
func (c *Controller) applyService(ctx context.Context, name api.Name, want wantedService, how metav1.ApplyOptions) error {
	client := c.store.Config().Client.CoreV1().Services(name.Namespace)
	if want.Gone {
		return kube.NotGone(client.Delete(ctx, name.Name, metav1.DeleteOptions{}))
	}
	stored, _ := c.metas.Load(name)
	meta, _ := stored.(serviceMeta)
	ports := []any{}
	for one := range strings.FieldsSeq(want.Ports) {
		proto, port, _ := strings.Cut(one, "-")
		n, _ := strconv.Atoi(port)
		ports = append(ports, map[string]any{"name": one, "protocol": strings.ToUpper(proto), "port": n})
	}
	policy := corev1.ServiceExternalTrafficPolicyCluster
	if want.Local {
		policy = corev1.ServiceExternalTrafficPolicyLocal
	}
	annotations := map[string]string{kube.AnnotationGateway: want.Version}
	for k, v := range meta.annotations {
		annotations[k] = v
	}
	spec := map[string]any{
		"type": corev1.ServiceTypeLoadBalancer, "externalTrafficPolicy": policy, "ports": ports,
		"ipFamilyPolicy": corev1.IPFamilyPolicyPreferDualStack, "allocateLoadBalancerNodePorts": c.cfg.NodePorts,
	}
	if c.cfg.Class != "" {
		spec["loadBalancerClass"] = c.cfg.Class
	}
	data, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Service", "spec": spec,
		"metadata": map[string]any{"name": name.Name, "namespace": name.Namespace, "labels": meta.labels, "annotations": annotations,
			"ownerReferences": ownerReferences(want.Gateway, want.UID)},
	})
	if err != nil {
		return fmt.Errorf("encode Service %v: %w", name, err)
	}
	_, err = client.Patch(ctx, name.Name, types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: how.FieldManager, Force: &how.Force})
	return err
}

// ownerReferences lets an object go with its Gateway.
func ownerReferences(name, uid string) []any {
	return []any{map[string]any{"apiVersion": gatewayv1.GroupVersion.String(), "kind": kindGateway, "name": name, "uid": uid, "controller": true}}
}
