package faults

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// The ports of the pods that echo, and of their Service.
const (
	portTCP = 7000
	portUDP = 7001
)

// namespace is where all objects of the tests are.
const namespace = "default"

// startPods starts pods on every node, and in each what answers.
func (l *lab) startPods(perNode int) {
	l.Helper()
	ctx := context.Background()
	pods := l.api.CoreV1().Pods(namespace)
	name := func(n *node, i int) string { return fmt.Sprintf("echo-%s-%d", n.Name, i) }
	for _, n := range l.nodes {
		for i := range perNode {
			if _, err := pods.Create(ctx, echoPod(name(n, i), n.Name), metav1.CreateOptions{}); err != nil {
				l.Fatal(err)
			}
		}
	}
	for _, n := range l.nodes {
		for i := range perNode {
			var addr netip.Addr
			l.await(name(n, i), func() error {
				p, err := pods.Get(ctx, name(n, i), metav1.GetOptions{})
				if err != nil {
					return err
				}
				for _, c := range p.Status.Conditions {
					if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
						addr, err = netip.ParseAddr(p.Status.PodIP)
						return err
					}
				}
				return fmt.Errorf("it is not ready: %s", p.Status.Phase)
			})
			pod := l.openPod(n, name(n, i), addr)
			pod.Serve("tcp", netip.AddrPortFrom(addr, portTCP))
			pod.Serve("udp", netip.AddrPortFrom(addr, portUDP))
			n.pods, n.addrs = append(n.pods, pod), append(n.addrs, addr)
		}
	}
}

func echoPod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "echo"}},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: new(int64(0)),
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "c", Image: "busybox", ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"sleep", "infinity"},
			}},
		},
	}
}

// openPod finds the pod's network namespace among those that the node's container runtime
// holds: it is the one that has the address.
func (l *lab) openPod(n *node, name string, addr netip.Addr) *testnet.Namespace {
	l.Helper()
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/root/run/netns/*", n.init))
	for _, file := range files {
		ns := testnet.OpenNamespace(l, name, file)
		if ns.Has(addr) {
			return ns
		}
	}
	l.Fatalf("no namespace of %s has %v, the address of %s: %v", n.Name, addr, name, files)
	return nil
}

// echoService makes a Service of the pods that echo, and returns it with its addresses.
func (l *lab) echoService(name string, kind corev1.ServiceType) *corev1.Service {
	l.Helper()
	svc, err := l.api.CoreV1().Services(namespace).Create(context.Background(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Type: kind, Selector: map[string]string{"app": "echo"},
			Ports: []corev1.ServicePort{
				{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: portTCP, TargetPort: intstr.FromInt32(portTCP)},
				{Name: "udp", Protocol: corev1.ProtocolUDP, Port: portUDP, TargetPort: intstr.FromInt32(portUDP)},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		l.Fatal(err)
	}
	return svc
}

// ways are all ways to the Service: on every node from a pod and from the node itself to
// the ClusterIP, and from outside to the NodePort and, if it is to have one, to the address of
// the load balancer, each over TCP and UDP.
func (l *lab) ways(svc *corev1.Service) (all []way) {
	l.Helper()
	cluster := netip.MustParseAddr(svc.Spec.ClusterIP)
	var balancer netip.Addr
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
		balancer = l.balancerAddress(svc.Name)
	}
	for _, p := range svc.Spec.Ports {
		for _, n := range l.nodes {
			at := netip.AddrPortFrom(cluster, uint16(p.Port))
			all = append(all,
				way{p.Name + " to ClusterIP from a pod on " + n.Name, n.pods[0], p.Name, at},
				way{p.Name + " to ClusterIP from " + n.Name, n.Namespace, p.Name, at},
				way{p.Name + " to NodePort of " + n.Name, l.client, p.Name, netip.AddrPortFrom(n.addr, uint16(p.NodePort))})
		}
		if balancer.IsValid() {
			all = append(all, way{p.Name + " to the load balancer's address", l.client, p.Name, netip.AddrPortFrom(balancer, uint16(p.Port))})
		}
	}
	return all
}

// balancerAddress waits for the address that the load balancer gives a Service.
func (l *lab) balancerAddress(name string) (addr netip.Addr) {
	l.Helper()
	l.await("an address of the load balancer", func() error {
		svc, err := l.api.CoreV1().Services(namespace).Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(svc.Status.LoadBalancer.Ingress) == 0 {
			return errors.New("there is none")
		}
		addr, err = netip.ParseAddr(svc.Status.LoadBalancer.Ingress[0].IP)
		return err
	})
	return addr
}

// carried waits until every way to the Service carries.
func (l *lab) carried(ways []way) {
	l.Helper()
	for _, w := range ways {
		l.await(w.name, func() error {
			if a := w.from.Ask(w.network, w.to, testnet.Patience); a.Outcome != testnet.Answered {
				return fmt.Errorf("%v", a)
			}
			return nil
		})
	}
}
