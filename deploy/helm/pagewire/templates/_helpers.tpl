{{- define "pagewire.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "pagewire.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pagewire.labels" -}}
{{ include "pagewire.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "pagewire.image" -}}
{{- $name := ternary "pagewire-cuda" "pagewire" (gt (int .Values.gpus) 0) -}}
{{- printf "%s:%s" (.Values.image.repository | default $name) (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{- /* What a pod needs of its host: with one GPU as much as deploy/kubernetes/base, and no more than it may have. */ -}}
{{- define "pagewire.host" -}}
{{- $gpus := int .Values.gpus -}}
cpu: {{ add 2 (mul 2 $gpus) | quote }}
memory: {{ .Values.resources.limits.memory | default (ternary (printf "%dGi" (add 16 (mul 8 $gpus))) "4Gi" (gt $gpus 0)) }}
{{- end -}}

{{- define "pagewire.secretName" -}}
{{- .Values.secret.existing | default (include "pagewire.fullname" .) -}}
{{- end -}}

{{- define "pagewire.claimName" -}}
{{- .Values.models.existingClaim | default (printf "%s-models" (include "pagewire.fullname" .)) -}}
{{- end -}}

{{- /* "true" if several pods can have the models' volume at once. */ -}}
{{- define "pagewire.sharable" -}}
{{- if or (not .Values.models.enabled) .Values.models.existingClaim (has "ReadWriteMany" .Values.models.accessModes) -}}
true
{{- end -}}
{{- end -}}

{{- /* Refuses what the cluster would only show as pods that never start. */ -}}
{{- define "pagewire.check" -}}
{{- if and (or .Values.autoscaling.enabled (gt (int .Values.replicas) 1)) (not (include "pagewire.sharable" .)) -}}
{{- fail "more than one replica needs models.accessModes [ReadWriteMany] (or models.enabled false): the nodes can't share a volume of ReadWriteOnce" -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (lt (int .Values.autoscaling.maxReplicas) (int .Values.autoscaling.minReplicas)) -}}
{{- fail (printf "autoscaling.maxReplicas %d is less than autoscaling.minReplicas %d" (int .Values.autoscaling.maxReplicas) (int .Values.autoscaling.minReplicas)) -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) -}}
{{- fail "ingress.enabled needs ingress.host" -}}
{{- end -}}
{{- end -}}
